// CLIP's tokenizer, from its `tokenizer.json`: byte pairs of lower-case words.

// What is white in Unicode. JavaScript's `\s` also has U+FEFF, and lacks U+0085.
const WHITE = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const SPACES = new RegExp(`[${WHITE}]+`, "gu");
const CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d";
const TEXT_ENDS = "<\\|startoftext\\|>|<\\|endoftext\\|>";
const PATTERN = `${TEXT_ENDS}|${CONTRACTIONS}|[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+`;
const WORDS = new RegExp(PATTERN.replace("[^\\s", `[^${WHITE}`), "gu");
// What the byte level then takes apart once more.
const PARTS = new RegExp(`${CONTRACTIONS}|\\p{L}+|\\p{N}+|[^${WHITE}\\p{L}\\p{N}]+`, "gu");
const WORD_END = "</w>";
const NO_RANK = Infinity;

/** Make a tokenizer of a parsed `tokenizer.json` and `tokenizer_config.json`; throws if they are of another kind. */
export function makeTokenizer(whole, config) {
  check(whole);
  const vocabulary = new Map(Object.entries(whole.model.vocab));
  const ranks = new Map(whole.model.merges.map((pair, rank) => [Array.isArray(pair) ? pair.join(" ") : pair, rank]));
  const added = new Map(whole.added_tokens.map((token) => [token.content, token.id]));
  const id = (token) => added.get(token) ?? vocabulary.get(token);
  const special = (role, otherwise) => {
    const token = config[role]?.content ?? config[role] ?? otherwise;
    const found = id(token);
    if (found === undefined) throw new Error(`tokenizer: its ${role} ${JSON.stringify(token)} is not in its vocabulary`);
    return found;
  };
  const symbols = byteSymbols();
  const unknown = id(whole.model.unk_token);
  const followers = furtherVectors(added);
  const asWritten = finder(whole.added_tokens.filter((token) => !token.normalized).map((token) => token.content));
  const normalised = whole.added_tokens.filter((token) => token.normalized);
  const lowered = new Map(normalised.map((token) => [normalise(token.content), token.id]));
  const asNormalised = finder([...lowered.keys()]);
  const known = new Map();

  const encodeWord = (word) => {
    if (!known.has(word)) {
      const bytes = [...new TextEncoder().encode(word)].map((byte) => symbols[byte]);
      bytes[bytes.length - 1] += WORD_END;
      known.set(word, merged(bytes, ranks).map((token) => vocabulary.get(token) ?? unknown));
    }
    return known.get(word);
  };
  const encodeText = (text) =>
    (text.match(WORDS) ?? []).flatMap((word) => word.match(PARTS) ?? []).flatMap(encodeWord);

  return {
    start: special("bos_token", "<|startoftext|>"),
    end: special("eos_token", "<|endoftext|>"),
    pad: special("pad_token", "<|endoftext|>"),
    length: config.model_max_length > 2 && config.model_max_length < 10000 ? config.model_max_length : 77,
    comma: vocabulary.get(`,${WORD_END}`),
    /** Return the ids of a text; a list for each token, since the vectors of one token stay together. */
    encode(text) {
      const ids = asWritten(text).flatMap(([part, isToken]) => {
        if (isToken) return [added.get(part)];
        return asNormalised(normalise(part)).flatMap(([piece, isOne]) => (isOne ? [lowered.get(piece)] : encodeText(piece)));
      });
      return ids.map((token) => [token, ...(followers.get(token) ?? [])]);
    },
  };
}

function check(whole) {
  const [split, level] = whole.pre_tokenizer?.pretokenizers ?? [];
  const kinds = (whole.normalizer?.normalizers ?? []).map((one) => one.type).join();
  const model = whole.model ?? {};
  const isClip =
    kinds === "NFC,Replace,Lowercase" && split?.pattern?.Regex === PATTERN && level?.type === "ByteLevel" &&
    model.type === "BPE" && model.end_of_word_suffix === WORD_END && !model.dropout &&
    whole.added_tokens.every((token) => !token.single_word);
  if (!isClip) throw new Error("tokenizer.json is no tokenizer of CLIP's kind, which is the one that this page knows");
}

function normalise(text) {
  // Letter by letter: the end of a word has no letters of its own here.
  const letters = [...text.normalize("NFC").replace(SPACES, " ")];
  return letters.map((letter) => letter.toLowerCase()).join("");
}

/** Return a function that takes a text apart at each of the tokens, the longest first: pairs of a part and whether it is one. */
function finder(tokens) {
  if (!tokens.length) return (text) => [[text, false]];
  const longest = [...tokens].sort((one, other) => other.length - one.length);
  const pattern = new RegExp(`(${longest.map((token) => token.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")).join("|")})`, "u");
  return (text) => text.split(pattern).map((part, place) => [part, place % 2 === 1]);
}

/** Join the pair that comes first in the table, the leftmost of these, until there is none. */
function merged(parts, ranks) {
  const rest = [...parts];
  while (rest.length > 1) {
    let best = NO_RANK;
    let place = 0;
    for (let i = 0; i + 1 < rest.length; i++) {
      const rank = ranks.get(`${rest[i]} ${rest[i + 1]}`) ?? NO_RANK;
      if (rank < best) [best, place] = [rank, i];
    }
    if (best === NO_RANK) break;
    rest.splice(place, 2, rest[place] + rest[place + 1]);
  }
  return rest;
}

/** Return a printable symbol for each byte, as GPT-2 has them: printable bytes are themselves. */
function byteSymbols() {
  const isPrintable = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte < 173) || byte > 173;
  let other = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(isPrintable(byte) ? byte : other++));
}

/** Find the further vectors of textual inversions: `TOKEN_1`, `TOKEN_2`, … */
function furtherVectors(added) {
  const found = new Map();
  for (const [token, id] of added) {
    const ids = [];
    while (added.has(`${token}_${ids.length + 1}`)) ids.push(added.get(`${token}_${ids.length + 1}`));
    if (ids.length) found.set(id, ids);
  }
  return found;
}
