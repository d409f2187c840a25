// One picture, large, with its recipe and what can be done with it.

import { $, make } from "./dom.js";
import { setInitial } from "./initial.js";
import { confirmed, notice, problem } from "./notices.js";
import { references } from "./picture_lists.js";
import { applyRecipe, recipeRows } from "./recipe.js";
import { like } from "./selection.js";
import { ask, path } from "./server.js";

let shown = null;
let around = () => [null, null];
let removed = () => {};

/** Show `picture`; `neighbours(picture)` returns the ones before and after it. */
export function view(picture, neighbours = () => [null, null]) {
  shown = picture;
  around = neighbours;
  const [before, after] = around(picture);
  $("viewer-before").disabled = !before;
  $("viewer-after").disabled = !after;
  $("viewer-picture").src = picture.url;
  $("viewer-picture").alt = picture.prompt || "Picture without a prompt";
  $("viewer-picture").classList.toggle("tiny", picture.width <= 128);
  $("viewer-link").href = picture.url;
  $("viewer-download").href = picture.url;
  $("viewer-download").download = `${picture.seed ?? "picture"}-${picture.id.slice(0, 8)}.png`;
  $("viewer-heading").textContent = new Date(picture.created).toLocaleString();
  const flagged = picture.flagged ? [make("p", { className: "problem" }, "The safety checker flagged this picture, so it is black.")] : [];
  const record = picture.record ?? { prompt: picture.prompt, seed: picture.seed, width: picture.width, height: picture.height };
  $("viewer-recipe").replaceChildren(...flagged, ...recipeRows(record));
  $("viewer-use").disabled = !picture.record;
  $("viewer-copy").disabled = !picture.parameters;
  $("viewer-refer").hidden = !references.allowed();
  $("viewer-like").setAttribute("aria-pressed", String(picture.favourite));
  problem($("viewer-problem"), "");
  if (!$("viewer").open) $("viewer").showModal();
}

function turn(place) {
  const next = around(shown)[place];
  if (next) view(next, around);
}

/** Return the file of a picture of the gallery, and go to where it is used. */
async function taken(picture) {
  const answer = await fetch(picture.url);
  if (!answer.ok) throw new Error("This picture is gone; the gallery no longer has it.");
  location.hash = "#paint";
  return answer.blob();
}

/** Start picture to picture from a picture of the gallery. */
export async function sendToInitial(picture) {
  await setInitial(await taken(picture), { name: "this picture" });
}

async function sendToReferences(picture) {
  await references.add([new File([await taken(picture)], `picture ${picture.seed ?? ""}`.trim())]);
}

async function changeLiking() {
  const picture = shown;
  try {
    await like(picture, !picture.favourite);
    $("viewer-like").setAttribute("aria-pressed", String(picture.favourite));
  } catch (error) {
    problem($("viewer-problem"), error);
  }
}

async function remove() {
  if (!(await confirmed("Delete this picture? Its file is gone for good.", "Delete"))) return;
  try {
    await ask(path("pictures", shown.id), { method: "DELETE" });
  } catch (error) {
    if (error.status !== 404) return problem($("viewer-problem"), error);
  }
  const [before, after] = around(shown);
  const gone = shown;
  if (after ?? before) view(after ?? before, around);
  else $("viewer").close();
  removed(gone);
  notice("Picture deleted.");
}

/** `onRemoved(picture)` hears of each picture that was deleted; `onUpscale(picture)` enlarges one. */
export function startViewer(onRemoved, onUpscale) {
  removed = onRemoved;
  const closing = (work) => async () => {
    const picture = shown;
    $("viewer").close();
    await work(picture);
  };
  $("viewer-close").addEventListener("click", () => $("viewer").close());
  $("viewer-before").addEventListener("click", () => turn(0));
  $("viewer-after").addEventListener("click", () => turn(1));
  $("viewer-delete").addEventListener("click", remove);
  $("viewer-like").addEventListener("click", changeLiking);
  $("viewer-use").addEventListener("click", closing((picture) => applyRecipe(picture.record)));
  $("viewer-send").addEventListener("click", closing((picture) => sendToInitial(picture).catch((error) => notice(error.message))));
  $("viewer-upscale").addEventListener("click", closing(onUpscale));
  $("viewer-refer").addEventListener("click", closing((picture) => sendToReferences(picture).catch((error) => notice(error.message))));
  $("viewer-copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(shown.parameters);
      notice("Copied.");
    } catch {
      problem($("viewer-problem"), "The browser allows no copying here; take the recipe below.");
    }
  });
  $("viewer").addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") turn(0);
    else if (event.key === "ArrowRight") turn(1);
    else if (event.key === "Delete") remove();
    else if (event.key === "f") changeLiking();
  });
}
