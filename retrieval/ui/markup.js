// The text of an HTML file as Markdown. It is parsed into a document that is never shown: nothing in it runs or loads.

const LEFT_OUT = "script, style, noscript, template, nav, header, footer, form, aside, svg, iframe, button";
const BLOCKS = new Set(["P", "DIV", "SECTION", "ARTICLE", "MAIN", "UL", "OL", "TABLE", "TR", "BLOCKQUOTE", "PRE", "DL", "DT", "DD", "FIGURE", "BR", "HR"]);
// The one place where a string is given to a parser; the page's policy allows no other.
const policy = globalThis.trustedTypes?.createPolicy("nearline-read", { createHTML: (text) => text });

export function markdownOf(html) {
  const parsed = new DOMParser().parseFromString(policy ? policy.createHTML(html) : html, "text/html");
  const title = parsed.title.trim() || parsed.querySelector("h1")?.textContent.trim() || "";
  const main = parsed.querySelector("main, article, [role=main]") || parsed.body;
  for (const element of main.querySelectorAll(LEFT_OUT)) element.remove();
  const text = written(main).replace(/[ \t]+\n/g, "\n").replace(/\n{3,}/g, "\n\n").trim();
  return { title, text };
}

function written(node) {
  if (node.nodeType === Node.TEXT_NODE) return node.data.replace(/\s+/g, " ");
  if (node.nodeType !== Node.ELEMENT_NODE) return "";
  if (node.tagName === "PRE") return `\n\n\`\`\`\n${node.textContent.trim()}\n\`\`\`\n\n`;
  const inside = [...node.childNodes].map(written).join("");
  const heading = /^H([1-6])$/.exec(node.tagName);
  if (heading) return `\n\n${"#".repeat(Number(heading[1]))} ${inside.trim()}\n\n`;
  if (node.tagName === "LI") return `\n- ${inside.trim()}`;
  if (node.tagName === "TD" || node.tagName === "TH") return `${inside.trim()} `;
  return BLOCKS.has(node.tagName) ? `\n${inside}\n${node.tagName === "P" ? "\n" : ""}` : inside;
}
