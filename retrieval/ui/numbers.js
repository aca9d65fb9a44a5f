// JSON whose integers stay what they are. JavaScript would round those beyond 2^53, as many ids are: they become BigInt.

const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?/g;
const INTEGER = /^-?(?:0|[1-9]\d*)$/;
const MARK = "\0integer "; // no text of a document holds a NUL

const isMarked = (value) => typeof value === "string" && value.startsWith(MARK);

export function decoded(text) {
  if (!/\d{16}|\d[eE]/.test(text)) return JSON.parse(text);
  const marked = text.replace(TOKENS, (token) => {
    if (token[0] === '"') return token;
    if (!Number.isFinite(Number(token))) throw new SyntaxError(`the number ${token.slice(0, 40)} is too large`);
    return INTEGER.test(token) && !Number.isSafeInteger(Number(token)) ? `"\\u0000integer ${token}"` : token;
  });
  return JSON.parse(marked, (_, value) => (isMarked(value) ? BigInt(value.slice(MARK.length)) : value));
}

export function encoded(value, indent) {
  const marked = JSON.stringify(value, (_, one) => (typeof one === "bigint" ? `${MARK}${one}` : one), indent);
  return marked.replace(/"\\u0000integer (-?\d+)"/g, "$1");
}
