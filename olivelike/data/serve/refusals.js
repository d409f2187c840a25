// What a painter is refused, in the page's language: the server says it in English.

import { $ } from "./dom.js";
import { labelOf, twoShares } from "./form.js";
import { LANGUAGE, t } from "./language.js";
import { chosenLoras, isKnownLora, isMisfit } from "./loras.js";
import { model, titleOf } from "./models.js";
import { lorasOfPrompt } from "./prompts.js";

/** What the server says of one field, and what the page says in its place: of the groups; what stands before it stays. */
const SENTENCES = [
  [/^one side alone is given.*/, () => t`Give width and height, or neither.`],
  [/^a side of (\d+) pixels is more than the (\d+).*/, (side, most) => t`A side of ${side} pixels is more than the ${most} that are drawn here.`],
  [/^(\d+) steps are more than the (\d+).*/, (steps, most) => t`${steps} steps are more than the ${most} that are taken here.`],
  [/^size (\S+): this pipeline makes sides that are multiples of (\d+) pixels; the nearest is (\d+x\d+).*/, (size, unit, nearest) => t`${size}: sides are multiples of ${unit} with this model; the nearest is ${nearest}.`],
  [/^([a-z_]+) \S+ is not from a share of the steps to a larger one.*/, (name) => `${labelOf(name)}: ${twoShares()}`],
  [/^([a-z_]+) is given without an initial picture.*/, (name) => t`${labelOf(name)} needs an initial picture.`],
  [/^([a-z_]+) is given without a mask.*/, (name) => t`${labelOf(name)} needs a mask.`],
  [/^([a-z_]+): it has ([\d,]+) chunks of 75 tokens.*? at most (\d+).*/, (name, chunks, most) => t`${labelOf(name)}: ${chunks} chunks of 75 tokens; at most ${most} are drawn with.`],
  [/^prompt: it has ([\d,]+) parts, and at most (\d+).*/, (parts, most) => t`${parts} parts of AND; at most ${most} are drawn with.`],
  [/^([a-z_]+): more than (\d+) brackets.*/, (name, most) => t`${labelOf(name)}: more than ${most} open brackets.`],
  [/^prompt_matrix: .*/, () => t`A prompt matrix needs parts of the prompt, with | between them: a|b|c.`],
  [/(?:sampler '[^']*': )?(?:there is no (?:sampler|schedule type|upscaler) |^no model |^LoRA (?=.*: there is no LoRA))'(.+?)'.*?(?:did you mean '(.+?)'.*|$)/, (name, near) => (near ? t`There is no “${name}” here, but “${near}”.` : t`There is no “${name}” here.`)],
  [/'(.+)' is not in the prompts, so.*/, (words) => t`“${words}” is not in the prompt.`],
  [/^(?:body\.)?num_images: .* less than or equal to (\d+)/, (most) => t`${$("num_images").value * $("batch_size").value} pictures; a job here has at most ${most}.`],
  [/(?:must|Input should) be greater than or equal to (\S+)/, (least) => t`at least ${least}.`],
  [/(?:must|Input should) be less than or equal to (\S+)/, (most) => t`at most ${most}.`],
];

/** What the server said, as the page says it; nothing for what it has no words for, and in English, where the server says more. */
function ofOneField(message) {
  if (LANGUAGE === "en") return null;
  for (const [pattern, words] of SENTENCES) {
    const found = pattern.exec(message);
    if (!found) continue;
    // Before it stands the field, or the axis.
    const [, field, rest] = /^(?:(?:body\.)?([a-z_]+): )?(.*)/s.exec(message.slice(0, found.index));
    return `${field ? `${labelOf(field)}: ` : ""}${rest}${words(...found.slice(1))}`;
  }
  return null;
}

/** What a painter is refused, in the page's language; nothing for what the server alone has words for. */
export function inThePagesLanguage({ code, status, message }) {
  if (status === 429) return t`So many jobs wait that no more are taken; try again when one is done.`;
  if (status === 507) return t`The server has no room left for pictures; free some space.`;
  const other = /\bLoRA is for /.test(message) && [...chosenLoras().map(({ name }) => name), ...lorasOfPrompt()].find(isMisfit);
  if (other) return t`The LoRA “${other}” is for another kind of model than “${titleOf(model())}”.`;
  if (code === "source" && /upload/.test(message)) return t`The server no longer has a picture that is used here; choose it again.`;
  const [unknown] = code === "source" ? lorasOfPrompt().filter((name) => !isKnownLora(name)) : [];
  return unknown ? t`There is no LoRA “${unknown}” here.` : status ? ofOneField(message) : null;
}
