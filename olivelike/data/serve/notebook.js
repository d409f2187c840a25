// What people keep for the next time: styles of prompts, presets of the form; and the prompts that they gave last.

import { $, button, make, on, typeOver } from "./dom.js";
import { fillForm, formState } from "./form.js";
import { withoutPictures } from "./form_pictures.js";
import { t } from "./language.js";
import { confirmed, notice, problem, shownAt } from "./notices.js";
import { ask, path, query } from "./server.js";

const MOST_HISTORY = 60;

const prompts = () => ({ prompt: $("prompt").value, negative_prompt: $("negative_prompt").value });

/** A prompt with a style added, as A1111 adds it. */
export function added(prompt, style) {
  if (style.includes("{prompt}")) return style.replaceAll("{prompt}", prompt);
  return [prompt.trim(), style.trim()].filter(Boolean).join(", ");
}

function write({ prompt, negative_prompt: negative }) {
  typeOver($("negative_prompt"), negative ?? "");
  typeOver($("prompt"), prompt ?? "");
}

async function history() {
  const { jobs } = await ask(query("/api/jobs", { limit: MOST_HISTORY }));
  const orders = jobs.map((job) => job.order).filter((order) => order?.prompt);
  const told = new Map(orders.map((order) => [`${order.prompt}\n${order.negative_prompt ?? ""}`, order]));
  return [...told.values()].map((order) => ({ name: order.prompt, detail: order.negative_prompt ? t`not: ${order.negative_prompt}` : "", order }));
}

/** Say that something is in the form, and let it be taken back. */
function tellTaken({ name }) {
  const before = formState();
  notice(t`“${name}” is in the form.`, [[t`Undo`, () => fillForm(before)]]);
}

const KINDS = {
  styles: {
    heading: t`Styles`, none: t`No styles yet.`, keep: t`Keep these prompts as a style`,
    hint: t`{prompt} in a style stands for the prompt that it is added to. Styles are in A1111’s styles.csv.`,
    read: async () => (await ask("/api/styles")).map((one) => ({ ...one, detail: [one.prompt, one.negative_prompt && t`not: ${one.negative_prompt}`].filter(Boolean).join(" · ") })),
    use(one) {
      const now = prompts();
      tellTaken(one);
      write({ prompt: added(now.prompt, one.prompt), negative_prompt: added(now.negative_prompt, one.negative_prompt) });
    },
    kept: prompts,
  },
  presets: {
    heading: t`Presets`, none: t`No presets yet.`, keep: t`Keep the form as a preset`, hint: t`A preset has every field, model and LoRAs; pictures it has not.`,
    read: async () => (await ask("/api/presets")).map((one) => ({ ...one, detail: one.form.fields?.prompt ?? "" })),
    use(one) {
      tellTaken(one);
      // One that was kept without a prompt is about the options.
      const { prompt, negative_prompt: negative, ...options } = one.form.fields ?? {};
      return fillForm({ ...one.form, fields: prompt || negative ? one.form.fields : options });
    },
    // Pictures are somebody's; how they lead is not.
    kept() {
      const state = formState();
      return { ...state, more: { ...state.more, pictures: withoutPictures(state.more.pictures) } };
    },
  },
  history: { heading: t`Last prompts`, none: t`Nothing was drawn yet.`, read: history, use: (one) => write(one.order) },
};

let kind = "styles";

async function show() {
  const { heading, none, read, use, keep, hint } = KINDS[kind];
  $("notebook-heading").textContent = heading;
  $("notebook-keep").hidden = !keep;
  $("notebook-keep-label").textContent = keep ?? "";
  $("notebook-hint").textContent = hint ?? "";
  try {
    const found = await read();
    problem($("notebook-problem"), "");
    $("notebook-none").textContent = found.length ? "" : none;
    $("notebook-list").replaceChildren(...found.map((one) => make("li", {},
      button("", () => {
        $("notebook").close();
        use(one);
      }, { className: "kept" }),
      kind === "styles" ? button("+", () => use(one), { className: "quiet icon", "aria-label": t`Add ${one.name} and stay here` }) : null,
      keep ? button("×", () => drop(one.name), { className: "quiet icon", "aria-label": t`Delete ${one.name}` }) : null)));
    // Texts go in as text, and a long one is cut by the style sheet.
    for (const [place, item] of [...$("notebook-list").children].entries()) {
      item.firstChild.append(make("strong", {}, found[place].name), make("span", { className: "hint" }, found[place].detail));
    }
  } catch (error) {
    $("notebook-list").replaceChildren();
    problem($("notebook-problem"), error);
  }
}

async function drop(name) {
  if (!(await confirmed(t`Delete “${name}”?`, t`Delete`))) return;
  await ask(path(kind, name), { method: "DELETE" }).catch(shownAt("notebook-problem"));
  await show();
}

async function keep() {
  const name = $("notebook-name").value.trim();
  if (!name) return $("notebook-name").focus();
  const there = [...$("notebook-list").querySelectorAll("strong")].some((one) => one.textContent === name);
  if (there && !(await confirmed(t`There is “${name}” already. Write over it?`, t`Write over`))) return;
  try {
    await ask(path(kind, name), { method: "PUT", json: KINDS[kind].kept() });
    $("notebook-name").value = "";
    $("notebook").close();
    notice(t`“${name}” is kept.`);
  } catch (error) {
    problem($("notebook-problem"), error);
  }
}

export function startNotebook() {
  for (const name of Object.keys(KINDS)) {
    on(`open-${name}`, "click", () => {
      kind = name;
      $("notebook").showModal();
      show().then(() => ($("notebook-list").querySelector("button") ?? $("notebook-name")).focus());
    });
  }
  on("notebook-close", "click", () => $("notebook").close());
  on("notebook-keep", "submit", (event) => {
    event.preventDefault();
    keep();
  });
}
