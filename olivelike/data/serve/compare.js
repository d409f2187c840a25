// Two pictures over each other, parted by a slider, and what differs in their recipes.

import { $, make, on, showIn } from "./dom.js";
import { t } from "./language.js";
import { recipeFacts } from "./recipe.js";

const part = () => $("compare-over").style.setProperty("clip-path", `inset(0 0 0 ${$("compare-slider").value}%)`);

/** A picture's record, or what is known of one that has none. */
export const recordOf = (picture) => picture.record ?? { prompt: picture.prompt, seed: picture.seed, width: picture.width, height: picture.height };

/** Facts that two recipes have differently: label, value of the first, value of the second. */
function differing(first, second) {
  const [one, other] = [first, second].map((picture) => new Map(recipeFacts(recordOf(picture)).map(([label, value]) => [label, String(value)])));
  return [...new Set([...one.keys(), ...other.keys()])].filter((label) => one.get(label) !== other.get(label)).map((label) => [label, one.get(label) ?? "–", other.get(label) ?? "–"]);
}

/** Show two pictures: the first one left of the slider, the second right of it. */
export function compare(first, second) {
  for (const [id, picture, side] of [["compare-under", first, t`Left`], ["compare-over", second, t`Right`]]) {
    showIn($(id), picture);
    $(id).alt = `${side}: ${$(id).alt} · ${t`Seed ${picture.seed ?? "?"}`}`;
  }
  const rows = differing(first, second).map((cells) => make("tr", {}, make("th", { scope: "row" }, cells[0]), ...cells.slice(1).map((text) => make("td", {}, text))));
  $("compare-rows").replaceChildren(...rows);
  $("compare-table").hidden = !rows.length;
  $("compare-same").hidden = rows.length > 0;
  $("compare-slider").value = 50;
  part();
  $("compare").showModal();
  $("compare-slider").focus();
}

export function startCompare() {
  on("compare-slider", "input", part);
  on("compare-close", "click", () => $("compare").close());
  on("compare-board", "pointerdown", (event) => $("compare-board").setPointerCapture(event.pointerId));
  on("compare-board", "pointermove", (event) => {
    if (!event.buttons) return;
    const { left, width } = $("compare-board").getBoundingClientRect();
    $("compare-slider").value = ((event.clientX - left) / width) * 100;
    part();
  });
}
