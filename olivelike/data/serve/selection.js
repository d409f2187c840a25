// Several pictures of the gallery, chosen at once, and what is done with all of them.

import { compare } from "./compare.js";
import { $, make, on } from "./dom.js";
import { fromGallery } from "./given.js";
import { t } from "./language.js";
import { confirmed, notice, problem, shownAt } from "./notices.js";
import { batch } from "./picture_lists.js";
import { ask, path, query } from "./server.js";
import { sendToUpscale } from "./upscale.js";

/** Pictures of a sheet, and of a request. */
const MOST = 500;

const chosen = new Map();
let last = null;
/** How far the chosen pictures are done with, while they are. */
let progress = "";
let removed = () => {};
let listed = () => [];
let wanted = () => ({});
let again = () => {};

/** The ids of what is chosen, while the gallery lists that alone. */
export const shownAlone = () => $("selected-show").getAttribute("aria-pressed") === "true" && [...chosen.keys()].slice(0, MOST).join();

export const selecting = () => $("select").getAttribute("aria-pressed") === "true";

const tile = (id) => $("gallery-days").querySelector(`[data-picture="${CSS.escape(id)}"]`);

/** Show on a tile whether its picture is chosen. */
export function markTile(item, id) {
  item.classList.toggle("chosen", chosen.has(id));
  if (selecting()) item.firstChild.setAttribute("aria-pressed", String(chosen.has(id)));
  else item.firstChild.removeAttribute("aria-pressed");
}

function tell() {
  const count = chosen.size;
  $("selected-count").textContent = progress || (count === 1 ? t`1 picture chosen` : t`${count} pictures chosen`);
  const lacking = { one: !count, two: count !== 2, few: !count || count > MOST };
  for (const button of $("selection").querySelectorAll("[data-needs]")) button.disabled = progress || lacking[button.dataset.needs];
}

function show() {
  $("selection").hidden = !selecting();
  tell();
  for (const item of $("gallery-days").querySelectorAll("[data-picture]")) markTile(item, item.dataset.picture);
}

function set(picture, wanted) {
  if (wanted) chosen.set(picture.id, picture);
  else chosen.delete(picture.id);
}

/** Choose all that the gallery is asked for, listed or not; or none, where all are chosen. */
async function chooseAll() {
  const known = new Map(listed().map((one) => [one.id, one]));
  const all = await ask(query("/api/pictures/ids", wanted()));
  const were = all.every(({ id }) => chosen.has(id));
  for (const one of all) set(known.get(one.id) ?? one, !were);
  show();
}

/** Choose a picture or leave it; with Shift all from the last one to it. */
export function choose(picture, event) {
  const wanted = !chosen.has(picture.id);
  const places = [picture.id, last ?? picture.id].map((id) => listed().findIndex((one) => one.id === id));
  const [from, to] = event?.shiftKey && !places.includes(-1) ? [Math.min(...places), Math.max(...places)] : [places[0], places[0]];
  for (const one of listed().slice(from, to + 1)) set(one, wanted);
  last = picture.id;
  show();
}

/** List what is chosen alone, which may be of several searches, or what is searched. */
export function showAlone(on) {
  const was = shownAlone();
  $("selected-show").setAttribute("aria-pressed", String(on));
  if (on || was) again();
}

/** Begin to choose, or end it and forget what was chosen. */
function select(on) {
  $("select").setAttribute("aria-pressed", String(on));
  showAlone(false);
  chosen.clear();
  last = null;
  show();
}

/** A picture is gone: it is chosen no more. Tell whether it was. */
export function forget(picture) {
  const was = chosen.delete(picture.id);
  if (was) tell();
  return was;
}

const ids = () => [...chosen.keys()].join(",");

/** Have the browser save what an address gives. */
function save(address, download = "") {
  const link = make("a", { href: address, download });
  document.body.append(link);
  link.click();
  link.remove();
}

/** Save the chosen pictures, which may be more than an address names. */
async function saveZip() {
  const body = new FormData();
  body.append("ids", ids());
  const answer = await fetch("/api/pictures/archive.zip", { method: "POST", body });
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  const address = URL.createObjectURL(await answer.blob());
  save(address, "pictures.zip");
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** Do something with the ids of all chosen pictures, as many at a time as a request names. */
async function inParts(work) {
  const all = [...chosen.keys()];
  try {
    problem($("gallery-problem"), "");
    for (let done = 0; done < all.length; done += MOST) {
      progress = t`${done} of ${all.length}`;
      tell();
      await work(all.slice(done, done + MOST));
    }
  } catch (error) {
    problem($("gallery-problem"), error);
  }
  progress = "";
  tell();
}

/** Delete a picture for good, and tell of it; one that is gone already is, too. */
export async function erase(picture) {
  try {
    await ask(path("pictures", picture.id), { method: "DELETE" });
  } catch (error) {
    if (error.status !== 404) throw error;
  }
  removed(picture);
}

async function removeAll() {
  const words = chosen.size === 1 ? t`Delete this picture? Its file is gone for good.` : t`Delete ${chosen.size} pictures? Their files are gone for good.`;
  const liked = [...chosen.values()].filter((one) => one.favourite).length;
  const also = !liked ? "" : liked === 1 ? ` ${t`1 of them is a favourite.`}` : ` ${t`${liked} of them are favourites.`}`;
  if (!(await confirmed(words + (chosen.size > 1 ? also : ""), t`Delete`))) return;
  let gone = 0;
  await inParts(async (ids) => {
    const told = await ask("/api/pictures/delete", { method: "POST", json: { ids } });
    for (const id of [...told.deleted, ...told.missing]) removed({ id });
    gone += told.deleted.length;
    if (told.why) problem($("gallery-problem"), { message: told.why, status: 403 });
  });
  notice(gone === 1 ? t`Picture deleted.` : t`${gone} pictures deleted.`);
}

/** Make a picture a favourite, or none. */
export async function like(picture, liked) {
  await ask(`${path("pictures", picture.id)}/favourite`, { method: liked ? "PUT" : "DELETE" });
  picture.favourite = liked;
  mark(picture.id, liked);
}

function mark(id, liked) {
  for (const one of [chosen.get(id), listed().find((shown) => shown.id === id)]) if (one) one.favourite = liked;
  tile(id)?.classList.toggle("liked", liked);
}

async function likeAll() {
  const liked = [...chosen.values()].some((one) => !one.favourite);
  await inParts(async (ids) => {
    const { marked } = await ask("/api/pictures/favourite", { method: "POST", json: { ids, liked } });
    for (const id of marked) mark(id, liked);
  });
}

/** `pictures()` returns those of the gallery in order, `asked()` what they are searched by; `search()` reads them, `onRemoved(picture)` hears of each that was deleted. */
export function startSelection(pictures, asked, search, onRemoved) {
  [listed, wanted, again, removed] = [pictures, asked, search, onRemoved];
  on("selected-show", "click", () => showAlone(!shownAlone()));
  on("select", "click", () => select(!selecting()));
  on("select-all", "click", () => chooseAll().catch(shownAt("gallery-problem")));
  on("selected-like", "click", likeAll);
  const whole = () => Promise.all([...chosen.values()].map((one) => (one.url ? one : ask(path("pictures", one.id)))));
  on("selected-compare", "click", async () => compare(...(await whole())));
  on("selected-sheet", "click", () => save(query("/api/pictures/sheet.png", { ids: ids() })));
  on("selected-zip", "click", () => saveZip().catch(shownAt("gallery-problem")));
  on("selected-upscale", "click", async () => sendToUpscale(...(await whole())));
  on("selected-batch", "click", async () => {
    location.hash = "#paint";
    $("fold-init").open = true;
    await batch.add(await whole(), (one) => fromGallery(one, t`this picture`));
  });
  on("selected-delete", "click", removeAll);
  on("view-gallery", "keydown", (event) => {
    if (event.key === "Escape" && selecting()) select(false);
  });
}
