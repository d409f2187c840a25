// One picture, large, with its recipe and what can be done with it.

import { recordOf } from "./compare.js";
import { FORM } from "./declared.js";
import { $, make, on, showIn } from "./dom.js";
import { locale, t } from "./language.js";
import { notice, problem } from "./notices.js";
import { showActions } from "./picture_actions.js";
import { recipeRows } from "./recipe.js";
import { ask, path } from "./server.js";

/** Pixels that a finger goes across for the next picture. */
const SWIPE = 50;

let shown = null;
let actual = false;
let listed = () => [];

/** The pictures before and after one, where there are some. */
function around(picture) {
  const all = listed(picture);
  const place = all.findIndex(({ id }) => id === picture.id);
  return place < 0 ? [] : [all[place - 1], all[place + 1]];
}

/** Show `picture`; `among(picture)` returns those that it stands among. */
export function view(picture, among = () => []) {
  shown = picture;
  listed = among;
  const [before, after] = around(picture);
  $("viewer-before").disabled = !before;
  $("viewer-after").disabled = !after;
  // What is disabled loses the focus, and with it the keys.
  if (document.activeElement?.disabled) (before ? $("viewer-before") : after ? $("viewer-after") : $("viewer-close")).focus();
  showIn($("viewer-picture"), picture);
  $("viewer-picture").style.setProperty("--pixels", `${picture.width / devicePixelRatio}px`);
  $("viewer-picture").style.setProperty("--shape", picture.width / picture.height);
  $("viewer-link").href = picture.url;
  $("viewer-heading").textContent = picture.given?.name ?? new Date(picture.created).toLocaleString(locale());
  problem($("viewer-flagged"), picture.flagged ? FLAGGED : "");
  $("viewer-recipe").replaceChildren(...recipeRows(recordOf(picture)));
  if (picture.sheet && picture.job) tellGrid(picture).catch(() => {});
  problem($("viewer-problem"), "");
  showActions("viewer", picture, {
    before: ({ stays }) => stays || $("viewer").close(),
    failed: (error) => ($("viewer").open ? problem($("viewer-problem"), error) : notice(error.message)),
  });
  if (!$("viewer").open) $("viewer").showModal();
}

/** Of a grid: what its pictures have in common, and what changes along its axes. */
async function tellGrid(picture) {
  const { order, pictures } = await ask(path("jobs", picture.job));
  const axes = ["x", "y", "z"].filter((side) => order[side]);
  if (picture !== shown || !axes.length) return;
  const changing = new Set(axes.map((side) => order[side].field));
  const common = Object.entries(pictures[0]?.record ?? {}).filter(([name]) => !changing.has(name) && !(name === "sampler" && changing.has("scheduler")));
  const rows = axes.map((side) => make("div", {}, make("dt", {}, `${side.toUpperCase()}: ${FORM.axes.find(({ name }) => name === order[side].field)?.label}`), make("dd", {}, order[side].values.join(", "))));
  $("viewer-recipe").replaceChildren(...rows, ...recipeRows({ ...Object.fromEntries(common), width: picture.width, height: picture.height }));
}

/** Show each pixel as one of the screen, the middle first, to be drawn along; or the whole picture. */
function zoom(on) {
  actual = on;
  const room = $("viewer-link");
  room.classList.toggle("actual", on);
  $("viewer-actual").setAttribute("aria-pressed", String(on));
  room.scrollTo((room.scrollWidth - room.clientWidth) / 2, (room.scrollHeight - room.clientHeight) / 2);
}

/** What is said of a flagged picture, with what to do. */
export const FLAGGED = t`The safety checker flagged this picture, so it is black. Draw it again with another seed or prompt; “Draw flagged again” under More options does so by itself.`;

function turn(place) {
  const next = around(shown)[place];
  if (next) view(next, listed);
}

/** A picture was deleted: where it was shown, one beside it is. */
export function leaveViewer(picture) {
  if (!$("viewer").open || shown?.id !== picture.id) return;
  const [before, after] = around(picture);
  const among = listed;
  if (after ?? before) view(after ?? before, (one) => among(one).filter(({ id }) => id !== picture.id));
  else $("viewer").close();
}

export function startViewer() {
  on("viewer-close", "click", () => $("viewer").close());
  on("viewer-before", "click", () => turn(0));
  on("viewer-after", "click", () => turn(1));
  on("viewer-actual", "click", () => zoom(!actual));
  on("viewer", "close", () => zoom(false));
  on("viewer-link", "mousemove", ({ buttons, movementX, movementY }) => buttons && $("viewer-link").scrollBy(-movementX, -movementY));
  on("viewer-link", "click", (event) => actual && event.preventDefault());
  let touched = null;
  on("viewer-link", "touchstart", ({ touches }) => (touched = touches.length === 1 ? touches[0] : null), { passive: true });
  on("viewer-link", "touchend", ({ changedTouches: [end] }) => {
    const [across, along] = touched && !actual ? [end.clientX - touched.clientX, end.clientY - touched.clientY] : [0, 0];
    if (Math.abs(across) > SWIPE && Math.abs(across) > 2 * Math.abs(along)) turn(across > 0 ? 0 : 1);
  });
  on("viewer", "keydown", (event) => {
    if (event.key === "ArrowLeft") turn(0);
    else if (event.key === "ArrowRight") turn(1);
    else if (event.key === "Delete") $("viewer-delete")?.click();
    else if (event.key === "z") zoom(!actual);
    else if (event.key === "f") $("viewer-like")?.click();
  });
}
