// Loaded before the page is drawn, so that a chosen scheme does not flash.
{
  const chosen = localStorage.getItem("nearline-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
