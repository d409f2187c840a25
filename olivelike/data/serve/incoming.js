// Pictures that come from outside: dropped on the page, pasted, or chosen; their recipe goes into the form.

import { $, PICTURES, onFiles } from "./dom.js";
import { takeControls, unitAt } from "./controls.js";
import { give, picked, recalled, upload } from "./given.js";
import { setInitial, takeMask } from "./initial.js";
import { t } from "./language.js";
import { notice } from "./notices.js";
import { batch, imagePrompts, references } from "./picture_lists.js";
import { applyRecipe } from "./recipe.js";
import { ask } from "./server.js";
import { setUpscale, takesPictures } from "./upscale.js";
import { view } from "./viewer.js";

/** What a fold does with a picture that falls on it, or is pasted where one is in it; elsewhere its recipe is read. */
const TAKERS = {
  "fold-init": (file, name) => setInitial(give(file, name)),
  "fold-control": (file) => takeControls([file]),
  "fold-references": (file) => references.add([file]),
  "fold-image-prompt": (file) => imagePrompts.add([file]),
  "fold-batch": (file) => batch.add([file]),
};
function takerAt(element) {
  const unit = unitAt(element);
  if (unit) return (file, name) => unit.take(give(file, name));
  if (element?.closest("#mask-drop")) return (file, name) => takeMask(give(file, name));
  const fold = element?.closest("details");
  return fold?.querySelector(".drop:not([hidden])") && TAKERS[fold.id];
}

const picturesIn = (transfer) => [...(transfer?.files ?? [])].filter((file) => PICTURES.includes(file.type));
const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

/** Load the recipe of a file, or in the gallery show it and leave the form as it is; or offer what else can be done with a picture that has none. */
async function loadRecipe(file) {
  const name = file.name || t`the picture`;
  try {
    const sent = await upload(file);
    const start = () => {
      location.hash = "#paint";
      return setInitial(picked(file, name, sent));
    };
    if (sent.record && !$("view-gallery").hidden) {
      const given = recalled({ ...sent, name });
      view({ ...given, given, prompt: sent.record.prompt, seed: sent.record.seed });
    } else if (sent.record) {
      await applyRecipe(sent.record, name, sent.left_out, [[t`Use as initial picture`, start]], sent.script);
    } else notice(sent.unread ? `${name}: ${sent.unread}.` : t`${name} has no recipe.`, [[t`Use as initial picture`, start]]);
  } catch (error) {
    // What the server has read, it won't read otherwise the next time.
    const known = error.status >= 400 && error.status < 500 && error.status !== 408 && error.status !== 429;
    if (known) notice(t`${name} is no picture that can be read; save it as PNG, JPEG or WebP.`);
    else notice(`${name}: ${error.message}`, [[t`Try again`, () => loadRecipe(file)]], { stays: true });
  }
}

/** Whether a text is meant as a recipe: it has a line of settings, or is what a program writes as JSON. */
const isRecipe = (text) => /(?:^|\s)Steps:\s*\d+\s*[,;|\n].*\w+:/is.test(text) || /^\s*\{.*".*\}\s*$/s.test(text);

/** Load a recipe that was pasted as text into the prompt; what is none stays for the browser to paste. */
async function pasteRecipe(text) {
  try {
    const { record, left_out, script } = await ask("/api/recipes", { method: "POST", json: { text } });
    await applyRecipe(record, t`the pasted text`, left_out, [], script);
  } catch (error) {
    notice(error.message);
  }
}

export function startIncoming() {
  let depth = 0;
  const hint = (now) => ($("drop-hint").hidden = !now);
  const zoneOf = (event) => event.target.closest?.("details .drop") ?? null;
  const mark = (zone) => {
    for (const one of document.querySelectorAll(".drop")) one.classList.toggle("over", one === zone);
  };
  addEventListener("dragenter", (event) => {
    if (!hasFiles(event)) return;
    depth += 1;
    hint(!takesPictures());
  });
  addEventListener("dragleave", (event) => {
    if (!hasFiles(event)) return;
    depth -= 1;
    if (depth <= 0) hint(false);
  });
  addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    mark(zoneOf(event));
    hint(!zoneOf(event) && !takesPictures());
  });
  addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    depth = 0;
    hint(false);
    mark(null);
    const files = picturesIn(event.dataTransfer);
    const [file] = files;
    if (!file) notice(t`${event.dataTransfer.files[0]?.name ?? t`The file`} is no PNG, JPEG or WebP.`);
    else if (takesPictures()) setUpscale(...files);
    else if (zoneOf(event)?.parentElement.id === "fold-batch") batch.add(files);
    else (takerAt(zoneOf(event)) ?? loadRecipe)(file, file.name);
  });
  addEventListener("paste", (event) => {
    const [file] = picturesIn(event.clipboardData);
    if (document.querySelector("dialog[open]")) return;
    const text = file ? "" : event.clipboardData?.getData("text/plain") ?? "";
    if (isRecipe(text) && [$("prompt"), document.body].includes(document.activeElement)) {
      event.preventDefault();
      pasteRecipe(text);
    }
    if (!file) return;
    event.preventDefault();
    if (takesPictures()) setUpscale(file);
    else (takerAt(document.activeElement) ?? loadRecipe)(file, t`the pasted picture`);
  });
  onFiles("recipe-file", ([file]) => loadRecipe(file));
}
