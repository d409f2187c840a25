// The two prompts: how many tokens they have, and colours behind what is more than plain text.

import { $, make, newest, on, settled, typeOver } from "./dom.js";
import { t } from "./language.js";
import { chosenLoras, isKnownLora, isMisfit, readLoras } from "./loras.js";
import { problem } from "./notices.js";
import { ask } from "./server.js";

const PAUSE = 250;
/** A LoRA's tag: all before its strength, and that. */
const LORA = /(<(?:lora|lyco):[^:<>]+)(?::(-?[\d.]+))?[^<>]*>/g;
/** Words in brackets with a weight, innermost ones. */
const WEIGHED = /\(((?:\\.|[^()\\])*):[\d.]+\)/gs;
/** What weighs words, or parts a prompt, where a model has that. */
const WEIGHTS = /\([^()]+:\s*[\d.]+\)|\[[^[\]]+:[^[\]]+\]|\bBREAK\b/;

/** Behaviour of one prompt. `model` returns the model whose tokenizer counts. */
class Editor {
  constructor(id, short, model) {
    this.input = $(id);
    this.colours = $(`${short}-colours`);
    this.count = $(`${short}-count`);
    this.notes = $(`${short}-notes`);
    this.negative = short === "negative";
    this.model = model;
    this.spans = [];
    this.text = "";
    this.looking = newest();
    this.refresh = settled(() => this.look(), PAUSE);
    this.input.addEventListener("input", () => this.changed());
    this.input.addEventListener("scroll", () => (this.colours.scrollTop = this.input.scrollTop));
    this.input.addEventListener("keydown", (event) => this.weigh(event));
    new ResizeObserver(() => this.align()).observe(this.input);
  }

  // The text area may have a scroll bar, which the colours behind it must leave room for.
  align() {
    this.colours.style.width = `${this.input.clientWidth}px`;
    this.colours.style.height = `${this.input.clientHeight}px`;
    this.colours.scrollTop = this.input.scrollTop;
  }

  changed() {
    const text = this.input.value;
    this.spans = movedSpans(this.spans, this.text, text);
    this.text = text;
    this.paint();
    this.refresh();
  }

  paint() {
    const parts = [];
    let place = 0;
    for (const { start, end, kind, weight } of this.spans) {
      if (start < place || end <= start) continue;
      parts.push(this.text.slice(place, start));
      const level = isWrong(kind, this.text.slice(start, end)) ? "unread" : kind !== "weight" ? kind : weight > 1 ? (weight > 1.25 ? "stronger" : "strong") : weight < 1 ? "weak" : "plain";
      parts.push(make("mark", { className: `of-${level.replace(/\W/g, "")}` }, this.text.slice(start, end)));
      place = end;
    }
    // A last line that is empty has no height of its own.
    this.colours.replaceChildren(...parts, `${this.text.slice(place)}\n`);
    this.align();
  }

  async look() {
    const isNewest = this.looking();
    const text = this.input.value;
    const model = this.model();
    if (!model) return;
    try {
      const found = await ask("/api/tokens", { method: "POST", json: { model, text, negative: this.negative, prompt_weights: $("prompt_weights").checked } });
      if (!isNewest() || text !== this.input.value) return;
      this.spans = flatSpans(found.spans, text);
      this.text = text;
      this.paint();
      this.tell(found.encoders);
      const named = this.spans.filter(({ kind }) => kind === "lora").map(({ start, end }) => loraOf(text.slice(start, end))).filter(Boolean);
      let unknown = named.filter((name) => !isKnownLora(name));
      // A file may have come since the list was read.
      if (unknown.some((name) => !sought.has(name))) {
        unknown.forEach((name) => sought.add(name));
        await readLoras();
        if (!isNewest()) return;
        this.paint();
        unknown = named.filter((name) => !isKnownLora(name));
      }
      const twice = chosenLoras().filter(({ name }) => named.includes(name));
      const unfit = [...new Set(named)].filter(isMisfit);
      const notes = [...unfit.map((name) => t`The LoRA “${name}” is for another kind of model.`), ...unknown.map((name) => t`There is no LoRA “${name}” here.`), ...twice.map(({ name }) => t`“${name}” is chosen under LoRAs, too: both strengths count.`)];
      if ($("prompt_weights").disabled && WEIGHTS.test(text)) notes.push(t`This model takes brackets and BREAK as words.`);
      this.note([...found.notes, ...notes].join("\n"), unknown.length + unfit.length > 0);
    } catch (error) {
      if (!isNewest()) return;
      if (error.status === 422 || error.status === 400) this.note(error.message, true);
      this.count.textContent = "";
    }
  }

  note(text, wrong) {
    this.notes.className = wrong ? "problem" : "hint";
    problem(this.notes, text);
  }

  tell(encoders) {
    const most = encoders.reduce((a, b) => (b.count >= a.count ? b : a), { count: 0, limit: 75, chunks: 1 });
    this.count.textContent = most.chunks > 1 ? t`${most.count} / ${most.limit} tokens in ${most.chunks} chunks` : t`${most.count} / ${most.limit} tokens`;
  }

  /** Ctrl+Up and Ctrl+Down weigh what is selected, else the brackets around the cursor that have a weight, or the word at it, as in A1111. */
  weigh(event) {
    if (!(event.ctrlKey || event.metaKey) || !["ArrowUp", "ArrowDown"].includes(event.key)) return;
    event.preventDefault();
    let { selectionStart: start, selectionEnd: end, value } = this.input;
    const tag = [...value.matchAll(LORA)].find(({ 0: text, index }) => index < end && start < index + text.length);
    if (tag) {
      const number = Math.round((Number(tag[2] ?? 1) + (event.key === "ArrowUp" ? 0.05 : -0.05)) * 100) / 100;
      typeOver(this.input, `${tag[1]}:${number}`, tag.index, tag.index + `${tag[1]}${tag[2] === undefined ? "" : `:${tag[2]}`}`.length);
      return this.input.setSelectionRange(tag.index + 1, tag.index + 1);
    }
    // A double click selects the space behind a word, too, on some systems.
    while (start < end && /\s/.test(value[start])) start += 1;
    while (start < end && /\s/.test(value[end - 1])) end -= 1;
    const around = start === end && [...value.matchAll(WEIGHED)].find(({ 0: text, index }) => index < end && start < index + text.length);
    if (around) [start, end] = [around.index + 1, around.index + 1 + around[1].length];
    if (start === end) {
      while (start > 0 && /[^\s,.()[\]{}<>|:]/.test(value[start - 1])) start -= 1;
      while (end < value.length && /[^\s,.()[\]{}<>|:]/.test(value[end])) end += 1;
    }
    if (start === end) return;
    let weight = 1;
    let words = value.slice(start, end);
    const after = /^:([\d.]+)\)/.exec(value.slice(end));
    let from = start;
    let to = end;
    if (value[start - 1] === "(" && after) {
      weight = Number(after[1]);
      [from, to] = [start - 1, end + after[0].length];
    }
    weight = Math.round((weight + (event.key === "ArrowUp" ? 0.1 : -0.1)) * 100) / 100;
    if (weight <= 0) return;
    const written = weight === 1 ? words : `(${words}:${weight})`;
    typeOver(this.input, written, from, to);
    const begin = from + (weight === 1 ? 0 : 1);
    this.input.setSelectionRange(begin, begin + words.length);
  }
}

const loraOf = (tag) => /^<(?:lora|lyco):([^:>]+)/.exec(tag)?.[1].trim();

/** Names of LoRAs in the prompt. */
export const lorasOfPrompt = () => [...$("prompt").value.matchAll(/(?<!\\)<(?:lora|lyco):[^<>]+>/g)].map(([tag]) => loraOf(tag)).filter(Boolean);

/** Names that no LoRA had when the list was read for them. */
const sought = new Set();

const isWrong = (kind, text) => kind === "lora" && loraOf(text) !== undefined && (!isKnownLora(loraOf(text)) || isMisfit(loraOf(text)));

/** Spans that still hold after an edit: those before it, and those behind it at their new place. */
function movedSpans(spans, before, after) {
  let head = 0;
  while (head < Math.min(before.length, after.length) && before[head] === after[head]) head += 1;
  let tail = 0;
  const most = Math.min(before.length, after.length) - head;
  while (tail < most && before.at(-1 - tail) === after.at(-1 - tail)) tail += 1;
  const grown = after.length - before.length;
  return spans.flatMap((span) => {
    if (span.end <= head) return [span];
    if (span.start >= before.length - tail) return [{ ...span, start: span.start + grown, end: span.end + grown }];
    return span.start <= head && span.end >= before.length - tail ? [{ ...span, end: span.end + grown }] : [];
  });
}

/** Spans one after the other, in JavaScript's positions: of spans in one another the inner ones are seen. */
function flatSpans(spans, text) {
  const places = [0];
  for (const letter of text) places.push(places.at(-1) + letter.length);
  const at = (index) => places[Math.min(index, places.length - 1)];
  const own = new Array(text.length).fill(null);
  const sorted = [...spans].sort((a, b) => b.end - b.start - (a.end - a.start));
  for (const span of sorted) own.fill(span, at(span.start), at(span.end));
  const flat = [];
  for (let place = 0; place < own.length; ) {
    let end = place + 1;
    while (end < own.length && own[end] === own[place]) end += 1;
    if (own[place]) flat.push({ ...own[place], start: place, end });
    place = end;
  }
  return flat;
}

const editors = [];

export function startPrompts(model) {
  editors.push(new Editor("prompt", "prompt", model), new Editor("negative_prompt", "negative", model));
  on("prompt_weights", "input", recount);
  // LoRAs came to the list, or went from it.
  on("form", "input", ({ target }) => target.id === "form" && recount());
}

/** Count anew, as after another model or when the text was set from elsewhere. */
export const recount = () => editors.forEach((editor) => editor.changed());
