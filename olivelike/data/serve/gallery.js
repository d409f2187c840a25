// The pictures of all days: in pages that come as one scrolls, searched by recipe.

import { $, button, make, newest, offer, on, option, recall, remember, settled, within } from "./dom.js";
import { set } from "./form.js";
import { locale, t } from "./language.js";
import { notice, problem, shownAt } from "./notices.js";
import { loraNames } from "./loras.js";
import { choose, forget, markTile, selecting, showAlone, shownAlone } from "./selection.js";
import { ask, query } from "./server.js";
import { view } from "./viewer.js";

const PAGE = 60;
/** Pictures of an answer. */
const MOST = 500;
/** What is searched in this tab, and how many pictures are listed, for the next time. */
const KEY = "olivelike.gallery";
const FIELDS = ["search", "search-kind", "search-model", "search-lora", "search-day"];

let pictures = [];
/** How many there are, listed or not. */
let total = 0;
let next = null;
let loading = false;
/** Whether pictures came that are not listed yet. */
let missed = false;
const asking = newest();
let again = null;
let back = () => {};

const visible = () => !$("view-gallery").hidden;

/** Of one like another: whose noise it has, and how much. */
export function variationOf({ record, sheet }) {
  const { variation_strength: share, variation_seed: seed } = record ?? {};
  return share && !sheet ? t`variation ${seed} at ${share}` : "";
}

/** A button with a picture's thumbnail. */
export function thumbnail(picture, open) {
  const image = make("img", { src: picture.thumb, alt: "", loading: "lazy", width: picture.width, height: picture.height });
  image.classList.toggle("tiny", picture.width <= 128);
  const label = picture.flagged ? t`Flagged` : picture.sheet ? t`Grid` : "";
  const words = [label, picture.prompt || t`Picture without a prompt`, picture.sheet ? "" : t`Seed ${picture.seed ?? "?"}`, variationOf(picture)].filter(Boolean).join(" · ");
  const badge = label ? make("span", { className: "of-picture" }, label) : null;
  return make("button", { type: "button", className: "thumbnail", title: words, "aria-label": words, on: { click: (event) => open(picture, event) } }, image, badge);
}

/** The pictures that are listed; the last one that is looked at asks for the page behind it. */
function among({ id }) {
  if (pictures.slice(-2).some((one) => one.id === id)) readMore();
  return pictures;
}

/** The day of its folder, as the filter has it: a file that was copied there is as old as its copy. */
function dayOf({ file }) {
  const day = new Date(`${file.slice(0, 10)}T00:00`);
  const today = new Date();
  const ago = Math.round((new Date(today.toDateString()) - new Date(day.toDateString())) / 86_400_000);
  if (ago === 0) return t`Today`;
  if (ago === 1) return t`Yesterday`;
  return day.toLocaleDateString(locale(), { dateStyle: "full" });
}

function put(picture, first = false) {
  const name = dayOf(picture);
  let day = [...$("gallery-days").children].find((one) => one.dataset.day === name);
  if (!day) {
    day = make("section", { className: "day", data: { day: name } }, make("h2", {}, name), make("ul", { className: "plain tiles" }));
    $("gallery-days")[first ? "prepend" : "append"](day);
  }
  const item = make("li", { data: { picture: picture.id } }, thumbnail(picture, (one, event) => (selecting() ? choose(one, event) : view(one, among))));
  item.classList.toggle("liked", picture.favourite);
  item.classList.toggle("flagged", Boolean(picture.flagged));
  markTile(item, picture.id);
  day.lastChild[first ? "prepend" : "append"](item);
}

/** What the gallery is asked for: what is chosen, or words and terms of the search, and the model. */
export function wanted() {
  const ids = shownAlone();
  if (ids) return { ids };
  const [lora, day] = [$("search-lora").value, $("search-day").value];
  const terms = [$("search").value.trim(), $("search-kind").value, lora && `lora:"${lora}"`, day && `date:${day}`];
  return { search: terms.filter(Boolean).join(" "), model: $("search-model").value };
}

function searchNothing() {
  for (const id of FIELDS) $(id).value = "";
  $("search").focus();
  return search();
}

const searching = () => Object.values(wanted()).some(Boolean);

function tell() {
  const empty = searching() ? t`No picture matches.` : t`No pictures yet. Paint one, and it stays here.`;
  $("gallery-status").textContent = !total ? empty : total === 1 ? t`1 picture` : t`${total} pictures`;
  if (!pictures.length && searching()) $("gallery-status").append(" ", button(t`All pictures`, searchNothing));
  $("gallery-more").hidden = !next;
}

async function read(before, limit = PAGE) {
  const isNewest = asking();
  loading = true;
  try {
    const found = await ask(query("/api/pictures", { ...wanted(), before, limit }));
    if (!isNewest()) return;
    if (!before) {
      pictures = [];
      total = found.total;
      $("gallery-days").replaceChildren();
    }
    const known = new Set(pictures.map((one) => one.id));
    for (const picture of found.pictures.filter((one) => !known.has(one.id))) {
      pictures.push(picture);
      put(picture);
    }
    next = found.next;
    problem($("gallery-problem"), "");
    tell();
  } catch (error) {
    if (isNewest()) problem($("gallery-problem"), error);
  } finally {
    if (isNewest()) loading = false;
  }
}

function readMore() {
  if (next && !loading) read(next);
}

export const search = () => read(null);

/** Have the server look for files that came into its folders. */
async function refresh() {
  const { added, removed } = await ask("/api/pictures/refresh", { method: "POST" });
  notice(t`New files: ${added}; gone: ${removed}.`);
  await search();
}

/** What was listed before a reload, and where it was looked at. */
async function readAgain(count) {
  again = null;
  await read(null, within(count, PAGE, MOST));
  back();
}

/** What came since the gallery was read, or its first page. */
export async function readNewest() {
  offer($("search-lora"), [option("", t`Any LoRA`), ...loraNames().map((name) => option(name))]);
  $("search-lora").parentElement.hidden = !loraNames().length;
  if (again) return readAgain(again.count);
  if (!pictures.length || searching()) return search();
  const found = await ask(query("/api/pictures", { limit: PAGE })).catch(() => ({ pictures: [] }));
  // More came than a page has.
  if (found.next && !found.pictures.some((one) => pictures.some(({ id }) => id === one.id))) return search();
  for (const picture of found.pictures.reverse()) addToGallery(picture);
}

/** Rows don't move under somebody who looks at them. */
const looked = () => visible() && (scrollY > 200 || selecting());

function catchUp() {
  if (!missed || looked()) return;
  missed = false;
  readNewest();
}

/** A picture that was just painted goes first, unless one is searching; sheets are listed apart. */
export function addToGallery(picture) {
  if (picture.sheet || searching() || pictures.some((one) => one.id === picture.id)) return;
  missed ||= looked();
  if (missed) return;
  pictures.unshift(picture);
  total += 1;
  put(picture, true);
  tell();
}

export function removeFromGallery(picture) {
  const before = pictures.length;
  pictures = pictures.filter((one) => one.id !== picture.id);
  if (forget(picture) || pictures.length < before) total -= 1;
  const item = $("gallery-days").querySelector(`[data-picture="${CSS.escape(picture.id)}"]`);
  const day = item?.closest(".day");
  item?.remove();
  if (day && !day.querySelector("li")) day.remove();
  tell();
}

/** Arrows go from picture to picture, up and down to the one that is nearest across. */
function walk(event) {
  const all = [...$("gallery-days").querySelectorAll(".thumbnail")];
  const place = all.indexOf(document.activeElement);
  const sides = { ArrowLeft: -1, ArrowRight: 1, Home: -all.length, End: all.length };
  const rows = { ArrowUp: -1, ArrowDown: 1 };
  if (place < 0 || event.altKey || event.ctrlKey || event.metaKey || !(event.key in sides || event.key in rows)) return;
  event.preventDefault();
  let next = all[within(place + sides[event.key], 0, all.length - 1)];
  if (event.key in rows) {
    const [here, way] = [all[place].getBoundingClientRect(), rows[event.key]];
    const beyond = all.map((one) => [one, one.getBoundingClientRect()]).filter(([, { top }]) => (top - here.top) * way > 1);
    const nearest = Math.min(...beyond.map(([, { top }]) => Math.abs(top - here.top)));
    const across = ([, { top, left }]) => (Math.abs(top - here.top) - nearest) * 1e4 + Math.abs(left - here.left);
    next = beyond.sort((one, other) => across(one) - across(other))[0]?.[0];
  }
  next?.focus();
}

/** The pictures that are listed, as they are shown. */
export const listed = () => pictures;

/** What is searched is as it was before a reload; `onBack()` is called once the same pictures are listed, too. */
export function startGallery(onBack) {
  back = onBack;
  again = recall(KEY, null, sessionStorage);
  FIELDS.forEach((id, place) => set($(id), again?.values[place]));
  addEventListener("pagehide", () => remember(KEY, { values: FIELDS.map((id) => $(id).value), count: pictures.length }, sessionStorage));
  const another = () => (shownAlone() ? showAlone(false) : search());
  on("search", "input", settled(another, 250));
  for (const id of FIELDS.slice(1)) on(id, "change", another);
  on("gallery-refresh", "click", () => refresh().catch(shownAt("gallery-problem")));
  on("gallery-more", "click", readMore);
  addEventListener("scroll", settled(catchUp, 150));
  on("gallery-days", "keydown", walk);
  new IntersectionObserver(([end]) => end.isIntersecting && visible() && readMore(), { rootMargin: "600px" }).observe($("gallery-more"));
}
