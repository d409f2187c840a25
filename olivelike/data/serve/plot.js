// X/Y/Z plots: an axis' field and values, read as A1111's script reads them.

import { FORM } from "./declared.js";
import { $, button, exact, make, on, onFilled, option, tellInput } from "./dom.js";
import { t } from "./language.js";

const SIDES = ["x", "y", "z"];
/** Each axis, and one more for each control picture where an axis is of all. */
const ROWS = FORM.axes.flatMap((one) => [one, ...Array.from({ length: one.units ?? 0 }, (_, place) => ({ ...one, name: `${one.name}_${place + 1}`, label: `${one.label} (${place + 1})`, unit: place + 1 }))]);
const AXES = Object.fromEntries(ROWS.map((one) => [one.name, one]));
/** Among the fields of X: of a|b|c, a with each choice of the others. */
const MATRIX = "prompt_matrix";

/** Values separated by commas; one with a comma in it stands in double quotes. */
function splitValues(text) {
  const found = text.match(/\s*"(?:[^"]|"")*"\s*|[^,]+/g) ?? [];
  return found
    .map((value) => value.trim())
    .filter((value) => value !== "")
    .map((value) => (/^".*"$/s.test(value) ? value.slice(1, -1).replaceAll('""', '"') : value));
}

const NUMBER = String.raw`([+-]?(?:\d+\.?\d*|\.\d+))`;
const RANGE = new RegExp(String.raw`^${NUMBER}\s*-\s*${NUMBER}(?:\s*\(\s*${NUMBER}\s*\)|\s*\[\s*(\d+)\s*\])?$`);
const MOST = 100;
/** What is written for axes that are no numbers. */
const EXAMPLES = { [MATRIX]: "a|b|c", lora: t`NAME:0.5, NAME:1`, prompt_sr: t`a word of the prompt, what takes its place, …` };

/** Numbers of one value: itself, `1-5`, `1-9 (+2)`, or `1-10 [4]` for so many between. */
function numbersOf(value, whole = false) {
  const range = RANGE.exec(value);
  if (!range) {
    if (!Number.isFinite(Number(value))) throw new Error(t`“${value}” is no number and no range such as 1-5`);
    return [exact(value)];
  }
  const [from, to] = [Number(range[1]), Number(range[2])];
  if (whole && !(Number.isSafeInteger(Math.round(from)) && Number.isSafeInteger(Math.round(to)))) throw new Error(t`“${value}”: ranges go up to ${Number.MAX_SAFE_INTEGER}; write each seed`);
  const round = (number) => (whole ? Math.round(number) : Math.round(number * 1e6) / 1e6);
  let count;
  let step;
  if (range[4]) {
    count = Number(range[4]);
    step = count > 1 ? (to - from) / (count - 1) : 0;
  } else {
    step = range[3] ? Number(range[3]) : to >= from ? 1 : -1;
    if (step === 0 || (to - from) / step < 0) throw new Error(t`“${value}” never arrives`);
    count = Math.floor((to - from) / step + 1e-9) + 1;
  }
  if (count > MOST) throw new Error(t`“${value}” has ${count} values; ${MOST} are the most`);
  return Array.from({ length: count }, (_, place) => round(from + place * step));
}

/** The control picture whose axis it is, from 1; none of another axis. */
export const unitOf = (field) => AXES[field]?.unit;

/** The axis as the server takes it, or null if there is none. */
export function axisOf(field, text) {
  if (!field) return null;
  const values = splitValues(text);
  if (!values.length) throw new Error(t`${AXES[field].label}: write the values, separated by commas`);
  if (!AXES[field].type) return { field, values };
  return { field, values: values.flatMap((value) => numbersOf(value, AXES[field].type === "integer")) };
}

/** The axes of the form, or its prompt matrix. Throws an `Error` with a sentence if values can't be read. */
export function axes() {
  if (hasMatrix()) return { [MATRIX]: {} };
  const found = Object.fromEntries(SIDES.map((side) => [side, axisOf($(`${side}-field`).value, $(`${side}-values`).value)]));
  for (const [first, second] of [["x", "y"], ["x", "z"], ["y", "z"]]) {
    const field = found[first]?.field;
    if (field && field === found[second]?.field && field !== "prompt_sr") throw new Error(t`${first.toUpperCase()} and ${second.toUpperCase()} are both ${AXES[field].label}; take another for one`);
  }
  return found;
}

const hasMatrix = () => $(`${SIDES[0]}-field`).value === MATRIX;

/** Leave all axes out; their values stay, for who chooses a field again. */
export function clearAxes() {
  for (const side of SIDES) $(`${side}-field`).value = "";
}

/** `units` is how many control pictures have weights of their own; `choices` returns, for a field, all values there are, or nothing. */
export function startPlot(choices, units) {
  for (const side of SIDES) {
    const name = side.toUpperCase();
    const options = ROWS.map((one) => option(one.name, one.label));
    if (side === "x") options.unshift(option(MATRIX, t`Prompt matrix`));
    const field = make("select", { id: `${side}-field`, data: { kept: "" } }, option("", t`Nothing`), ...options);
    const values = make("input", { id: `${side}-values`, type: "text", data: { kept: "" }, autocomplete: "off", "aria-describedby": "plot-hint" });
    const all = button("☰", () => {
      values.value = (choices(field.value) ?? []).map((value) => (value.includes(",") ? `"${value}"` : value)).join(", ");
      tellInput(values);
    }, { id: `${side}-all`, className: "icon", "aria-label": t`All values for ${name}` });
    $("plot-hint").before(make("div", { className: "axis" }, make("label", {}, `${name} `, field), make("label", {}, `${t`${name} values`} `, values), all));
  }
  const show = () => {
    for (const one of document.querySelectorAll(".axis option")) {
      const { unit } = AXES[one.value] ?? {};
      // One unit's weight is that of all.
      one.hidden = one.disabled = unit > (units() < 2 ? 0 : units());
    }
    for (const side of SIDES) {
      const { value } = $(`${side}-field`);
      $(`${side}-all`).hidden = !choices(value);
      $(`${side}-values`).disabled = !value || hasMatrix();
      $(`${side}-values`).placeholder = EXAMPLES[value] ?? "";
      if (side !== "x") $(`${side}-field`).disabled = hasMatrix();
    }
    let text = "";
    try {
      const { x, y, z } = axes();
      const counts = [x, y, ...(z ? [z] : [])].map((axis) => axis?.values.length ?? 1);
      if (x || y || z) text = counts.join(" × ");
      if (hasMatrix()) counts.push((text = 2 ** ($("prompt").value.split("|").length - 1)));
      const [count, most] = [counts.reduce((one, other) => one * other, $("num_images").value), $("num_images").max];
      const said = text && most && count > most ? t`${count} pictures; a job here has at most ${most}.` : "";
      Object.assign($("plot-problem"), { textContent: said, hidden: !said });
    } catch {
      text = "…";
    }
    $("plot-badge").textContent = text;
  };
  on("form", "input", show);
  onFilled(show);
  show();
}
