// Prompts as rows of ids with weights: A1111's `(more)`, `[less]`, `(this:1.3)` and `BREAK`, in chunks of 75 tokens.
// `olivelike generate` reads them by the same rules; what it knows beyond these is refused here, not taken for text.

const STRONGER = 1.1;
const WEAKER = 1 / 1.1;
const COMMA_REACH = 20;
const LONGEST = 20000;
const LARGEST_WEIGHT = 10000;
const PIECE = /\\[()[\]\\]?|:\s*(?<weight>[+-]?(?:\d+\.?\d*|\.\d+))\s*\)|[()[\]]|[^\\()[\]:]+|:/g;

const UNKNOWN = [
  [/\bAND\b/, "prompts joined by AND"],
  [/(?<!\\)<(?:lora|lyco):/, "LoRA tags"],
  [/(?<!\\)\[[^[\]]*[:|][^[\]]*\]/, "prompts that change from step to step, [a:b:0.5] or [a|b]"],
  [/\{[^{}]*\|[^{}]*\}/, "choices, {a|b}"],
  [/__[^\s_](?:[^\n]*?[^\s_])?__/, "wildcards, __name__"],
];

/** Return `{text, weight}` for each stretch of a prompt, and `null` for each break. */
export function parsePrompt(prompt) {
  if (prompt.length > LONGEST) throw new Error(`The prompt has ${prompt.length} characters; at most ${LONGEST} are read.`);
  for (const [pattern, what] of UNKNOWN) {
    if (pattern.test(prompt)) throw new Error(`This page does not know ${what}; “olivelike generate” does.`);
  }
  const pieces = [];
  const opened = { "(": [], "[": [] };
  const add = (text) => pieces.push({ text, weight: 1 });
  const close = (bracket, factor) => {
    for (const piece of pieces.slice(opened[bracket].pop())) piece.weight *= factor;
  };
  for (const match of prompt.matchAll(PIECE)) {
    const piece = match[0];
    if (piece.startsWith("\\")) add(piece.slice(1));
    else if (piece in opened) opened[piece].push(pieces.length);
    else if (match.groups.weight !== undefined && opened["("].length) close("(", Number(match.groups.weight));
    else if (piece === ")" && opened["("].length) close("(", STRONGER);
    else if (piece === "]" && opened["["].length) close("[", WEAKER);
    else addWords(piece, add);
  }
  while (opened["("].length) close("(", STRONGER);
  while (opened["["].length) close("[", WEAKER);
  for (const { text, weight } of pieces) {
    if (!(Math.abs(weight) <= LARGEST_WEIGHT)) throw new Error(`The weight of “${text}” is too large; use a smaller one.`);
  }
  return joined(pieces);
}

function addWords(piece, add) {
  const parts = piece.split(/\bBREAK\b/);
  parts.forEach((part, number) => {
    if (number > 0) add(null);
    let text = number > 0 ? part.trimStart() : part;
    if (number + 1 < parts.length) text = text.trimEnd();
    add(text);
  });
}

/** Join neighbours of equal weight, so that what is no emphasis is tokenized in one piece. */
function joined(pieces) {
  const found = [];
  let current = null;
  for (const { text, weight } of pieces) {
    if (text === null) {
      found.push(null);
      current = null;
    } else if (current && text && weight === current.weight) current.text += text;
    else if (text) found.push((current = { text, weight }));
  }
  return found.some((one) => one) || found.length ? found : [{ text: "", weight: 1 }];
}

/** Return rows of ids and of weights, each as long as the text encoder takes them; there is always one. */
export function chunk(tokenizer, parts) {
  const room = tokenizer.length - 2;
  const full = [];
  let current = [];
  let comma = null;
  const end = () => {
    full.push(current);
    [current, comma] = [[], null];
  };
  const add = (group) => {
    if (group[0][0] === tokenizer.comma) comma = current.length;
    else if (current.length === room && comma !== null && room - comma <= COMMA_REACH) {
      const moved = current.splice(comma + 1);
      end();
      current = moved;
    }
    if (current.length + group.length > room) end();
    current.push(...group);
  };
  for (const part of parts) {
    if (part === null) end();
    else {
      for (const ids of tokenizer.encode(part.text)) {
        for (let from = 0; from < ids.length; from += room) add(ids.slice(from, from + room).map((id) => [id, part.weight]));
      }
    }
  }
  if (current.length || !full.length) end();
  return full.map((tokens) => row(tokenizer, tokens));
}

/** Return as many rows as asked for, the further ones being those of an empty prompt. */
export function padded(tokenizer, rows, count) {
  return [...rows, ...Array.from({ length: count - rows.length }, () => row(tokenizer, []))];
}

function row(tokenizer, tokens) {
  const padding = tokenizer.length - 2 - tokens.length;
  return {
    ids: [tokenizer.start, ...tokens.map(([id]) => id), tokenizer.end, ...Array(padding).fill(tokenizer.pad)],
    weights: [1, ...tokens.map(([, weight]) => weight), 1, ...Array(padding).fill(1)],
  };
}

/** Multiply states by their tokens' weights in place, and bring them back to the mean that they had. */
export function weigh(states, weights) {
  if (weights.every((weight) => weight === 1)) return;
  const width = states.length / weights.length;
  const mean = () => states.reduce((sum, value) => sum + value, 0) / states.length;
  const before = mean();
  for (let i = 0; i < states.length; i++) states[i] *= weights[Math.floor(i / width)];
  const factor = before / mean();
  for (let i = 0; i < states.length; i++) states[i] *= factor;
  if (!states.every(Number.isFinite)) throw new Error("With these weights the prompt has no finite values; use smaller ones.");
}
