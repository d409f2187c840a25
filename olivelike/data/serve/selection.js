// Several pictures of the gallery, chosen at once, and what is done with all of them.

import { compare } from "./compare.js";
import { $, make } from "./dom.js";
import { t } from "./language.js";
import { confirmed, notice, problem } from "./notices.js";
import { ask, path, query } from "./server.js";

const MOST = 500;

const chosen = new Map();
let last = null;
let removed = () => {};
let listed = () => [];

export const selecting = () => $("select").getAttribute("aria-pressed") === "true";

const tile = (id) => $("gallery-days").querySelector(`[data-picture="${CSS.escape(id)}"]`);

/** Show on a tile whether its picture is chosen. */
export function markTile(item, id) {
  item.classList.toggle("chosen", chosen.has(id));
  if (selecting()) item.firstChild.setAttribute("aria-pressed", String(chosen.has(id)));
  else item.firstChild.removeAttribute("aria-pressed");
}

function show() {
  const count = chosen.size;
  $("selection").hidden = !selecting();
  $("selected-count").textContent = count === 1 ? t`1 picture chosen` : t`${count} pictures chosen`;
  for (const button of $("selection").querySelectorAll("[data-needs]")) button.disabled = button.dataset.needs === "two" ? count !== 2 : !count;
  for (const item of $("gallery-days").querySelectorAll("[data-picture]")) markTile(item, item.dataset.picture);
}

function set(picture, wanted) {
  if (!wanted) chosen.delete(picture.id);
  else if (chosen.size < MOST) chosen.set(picture.id, picture);
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

/** Begin to choose, or end it and forget what was chosen. */
export function select(on) {
  $("select").setAttribute("aria-pressed", String(on));
  chosen.clear();
  last = null;
  show();
}

/** A picture is gone: it is chosen no more. */
export function forget(picture) {
  if (chosen.delete(picture.id)) show();
}

const ids = () => [...chosen.keys()].join(",");

/** Have the browser save what an address gives. */
function save(address) {
  const link = make("a", { href: address, download: "" });
  document.body.append(link);
  link.click();
  link.remove();
}

/** Do something for each picture, a few at a time; return those for which it went well. */
async function forEach(work) {
  const waiting = [...chosen.values()];
  const done = [];
  const worker = async () => {
    for (let one = waiting.shift(); one; one = waiting.shift()) {
      await work(one);
      done.push(one);
    }
  };
  try {
    await Promise.all([worker(), worker(), worker()]);
    problem($("gallery-problem"), "");
  } catch (error) {
    waiting.length = 0;
    problem($("gallery-problem"), error);
  }
  return done;
}

async function removeAll() {
  const words = chosen.size === 1 ? t`Delete this picture? Its file is gone for good.` : t`Delete ${chosen.size} pictures? Their files are gone for good.`;
  const liked = [...chosen.values()].filter((one) => one.favourite).length;
  const also = !liked ? "" : liked === 1 ? ` ${t`1 of them is a favourite.`}` : ` ${t`${liked} of them are favourites.`}`;
  if (!(await confirmed(words + (chosen.size > 1 ? also : ""), t`Delete`))) return;
  const refused = new Map();
  const done = await forEach((picture) => ask(path("pictures", picture.id), { method: "DELETE" }).catch((error) => {
    if (error.status === 403) refused.set(picture, error);
    else if (error.status !== 404) throw error;
  }));
  const gone = done.filter((one) => !refused.has(one));
  for (const error of refused.values()) problem($("gallery-problem"), error);
  for (const picture of gone) removed(picture);
  notice(gone.length === 1 ? t`Picture deleted.` : t`${gone.length} pictures deleted.`);
  show();
}

/** Make a picture a favourite, or none. */
export async function like(picture, liked) {
  await ask(`${path("pictures", picture.id)}/favourite`, { method: liked ? "PUT" : "DELETE" });
  picture.favourite = liked;
  tile(picture.id)?.classList.toggle("liked", liked);
}

async function likeAll() {
  const liked = [...chosen.values()].some((one) => !one.favourite);
  await forEach((picture) => like(picture, liked));
}

/** `pictures()` returns those of the gallery in order; `onRemoved(picture)` hears of each that was deleted. */
export function startSelection(pictures, onRemoved) {
  listed = pictures;
  removed = onRemoved;
  $("select").addEventListener("click", () => select(!selecting()));
  $("select-all").addEventListener("click", () => {
    const all = listed().every((one) => chosen.has(one.id));
    for (const one of listed()) set(one, !all);
    show();
  });
  $("selected-like").addEventListener("click", likeAll);
  $("selected-compare").addEventListener("click", () => compare(...chosen.values()));
  $("selected-sheet").addEventListener("click", () => save(query("/api/pictures/sheet.png", { ids: ids() })));
  $("selected-zip").addEventListener("click", () => save(query("/api/pictures/archive.zip", { ids: ids() })));
  $("selected-delete").addEventListener("click", removeAll);
  $("view-gallery").addEventListener("keydown", (event) => {
    if (event.key === "Escape" && selecting()) select(false);
  });
}
