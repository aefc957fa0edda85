"use strict";
// The page of lmk serve. Texts of documents and queries enter the page as text nodes only.

const byId = (id) => document.getElementById(id);
const FUSED = "fused";
const HITS = 10;
let indexes = [];
let serial = 0; // the number of the latest action; answers to earlier ones are ignored

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

async function ask(path, body) {
  const headers = {};
  const token = sessionStorage.getItem("token");
  if (token) headers.authorization = `Bearer ${token}`;
  if (body) headers["content-type"] = "application/json";
  const answer = await fetch(path, {
    method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body),
  });
  if (answer.status === 401) {
    byId("access").hidden = false;
    byId("token").focus();
  }
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error.message);
  return value;
}

function say(text) {
  byId("status").textContent = text;
}

// Offsets of the server count code points, and JavaScript counts UTF-16 units.
function cutter(text) {
  if (!/[\ud800-\udfff]/.test(text)) return (begin, end) => text.slice(begin, end);
  const points = Array.from(text);
  return (begin, end) => points.slice(begin, end).join("");
}

function pattern(query) {
  const words = (query.toLowerCase().match(/[\p{L}\p{N}_]{3,}/gu) || []).slice(0, 50);
  if (!words.length) return null;
  return new RegExp(`(?<![\\p{L}\\p{N}_])(?:${[...new Set(words)].join("|")})(?![\\p{L}\\p{N}_])`, "giu");
}

// Add a text to an element, with the words of the query marked.
function addMarked(element, text, words) {
  let done = 0;
  let count = 0;
  if (words) {
    for (const found of text.matchAll(words)) {
      if (++count > 2000) break;
      element.append(text.slice(done, found.index), make("mark", {}, found[0]));
      done = found.index + found[0].length;
    }
  }
  element.append(text.slice(done));
}

function place(element, begin, end, whole) {
  element.style.left = `${(100 * begin) / whole}%`;
  element.style.width = `${(100 * (end - begin)) / whole}%`;
  return element;
}

// The state of the page is in the part of its address after '#'.
function state() {
  const values = new URLSearchParams(location.hash.slice(1));
  return {
    query: values.get("q") || "",
    views: values.getAll("view"),
    doc: values.get("doc"),
    index: values.get("index"),
  };
}

function address(values) {
  const parts = new URLSearchParams();
  if (values.doc) {
    parts.set("doc", values.doc);
    parts.set("index", values.index);
  }
  parts.set("q", values.query);
  for (const view of values.views) parts.append("view", view);
  return `#${parts}`;
}

function chosenViews() {
  return [...document.querySelectorAll("#views input:checked")].map((box) => box.value);
}

function showViews(views) {
  const names = indexes.map((each) => each.name);
  if (names.length > 1) names.push(FUSED);
  const chosen = views.length ? views : names.slice(0, 3);
  const boxes = names.map((name) => {
    const box = make("input", { type: "checkbox", value: name });
    box.checked = chosen.includes(name);
    box.addEventListener("change", () => {
      const now = { ...state(), views: chosenViews() };
      if (now.query) location.hash = address(now);
    });
    return make("label", {}, box, name);
  });
  byId("views").replaceChildren(byId("views").firstElementChild, ...(names.length > 1 ? boxes : []));
  return names.filter((name) => chosen.includes(name));
}

async function showResults(now, mine) {
  const views = showViews(now.views);
  const started = performance.now();
  say("Searching …");
  const requests = views.map((view) => ask("v1/search", {
    query: now.query, k: HITS, index: view === FUSED ? indexes.map((each) => each.name) : view,
  }).then((answer) => answer.results[0].hits));
  const outcomes = await Promise.allSettled(requests);
  if (mine !== serial) return;
  const ranks = new Map();
  outcomes.forEach((outcome, column) => {
    for (const hit of outcome.value || []) {
      if (!ranks.has(hit.id)) ranks.set(hit.id, []);
      ranks.get(hit.id).push([views[column], hit.rank]);
    }
  });
  const words = pattern(now.query);
  const columns = outcomes.map((outcome, column) => {
    const view = views[column];
    const known = indexes.find((each) => each.name === view);
    const title = make("h2", { id: `view-${column}` }, known ? `${view} (${known.kind})` : `${view} (rrf)`);
    const section = make("section", { "aria-labelledby": `view-${column}` }, title);
    if (outcome.status === "rejected") section.append(make("p", {}, outcome.reason.message));
    else if (!outcome.value.length) section.append(make("p", {}, "No document found."));
    else {
      const items = outcome.value.map((hit) => showHit(hit, view, now, words, ranks.get(hit.id)));
      section.append(make("ol", { class: "hits" }, ...items));
    }
    return section;
  });
  byId("main").replaceChildren(make("div", { class: "columns" }, ...columns));
  const failed = outcomes.find((outcome) => outcome.status === "rejected");
  const seconds = ((performance.now() - started) / 1000).toFixed(2);
  say(failed ? failed.reason.message : `${ranks.size} documents in ${seconds} s`);
}

function showHit(hit, view, now, words, ranks) {
  const index = view === FUSED ? indexes[0].name : view;
  const link = make("a", { href: address({ ...now, doc: hit.id, index }), dir: "auto" }, hit.title || hit.id);
  const item = make("li", {}, make("div", { class: "line" },
    make("span", { class: "rank" }, String(hit.rank)), link,
    make("span", { class: "score", title: "score" }, hit.score.toFixed(4))));
  const others = ranks.filter(([name]) => name !== view).map(([name, rank]) => `${name}: ${rank}`);
  const facts = [hit.title ? hit.id : "", ...others].filter(Boolean).join(" · ");
  if (facts) item.append(make("p", { class: "facts", dir: "auto" }, facts));
  const text = make("p", { class: "text", dir: "auto" });
  const shown = hit.passage && hit.passage.text ? cutter(hit.passage.text)(0, 600) : hit.text || "";
  addMarked(text, shown, words);
  item.append(text);
  if (hit.passage && hit.characters && hit.passage.end > hit.passage.begin) {
    const { chunk, chunks, begin, end } = hit.passage;
    item.append(make("div", {
      class: "bar", role: "img", "aria-label": `Passage ${chunk + 1} of ${chunks} in the document`,
    }, place(make("span"), begin, end, hit.characters)));
  }
  return item;
}

async function showDocument(now, mine) {
  showViews(now.views);
  say("Loading …");
  const query = Array.from(now.query).slice(0, 1000).join("");
  const parameters = new URLSearchParams({ index: now.index, query });
  const found = await ask(`v1/documents/${encodeURIComponent(now.doc)}?${parameters}`);
  if (mine !== serial) return;
  const article = make("article", {},
    make("p", { class: "facts" }, make("a", { href: address({ ...now, doc: null }) }, "Back to the results")),
    make("h1", { dir: "auto" }, found.title || found.id),
    make("p", { class: "facts", dir: "auto" }, `${found.id} · ${found.index}`));
  const whole = Array.from(found.text).length;
  const passage = found.passage;
  if (found.chunks || (passage && passage.end > passage.begin)) {
    article.append(showBar(found, whole, found.text_begin));
  }
  article.append(showText(found, now.query));
  byId("main").replaceChildren(article);
  say(passage ? `Best passage: ${passage.chunk + 1} of ${passage.chunks}` : "");
  const best = article.querySelector("mark");
  if (best) best.scrollIntoView({ block: "center" });
}

// One segment per chunk, as opaque as its score is high within the document; a click shows the chunk.
function showBar(found, whole, shift) {
  const passage = found.passage;
  const chunks = found.chunks || [{ begin: passage.begin, end: passage.end, score: 1 }];
  const scores = chunks.map((chunk) => chunk.score);
  const low = Math.min(...scores);
  const range = Math.max(...scores) - low || 1;
  const length = whole + shift || 1;
  const bar = make("div", { class: "bar", role: "group", "aria-label": "Chunks of the document by score" });
  chunks.forEach((chunk, number) => {
    const score = chunk.score.toFixed(4);
    const name = found.chunks ? `Chunk ${number + 1} of ${chunks.length}, score ${score}` : "Best passage";
    const segment = make("button", { type: "button", title: name, "aria-label": name });
    if (passage && passage.begin === chunk.begin && passage.end === chunk.end) segment.classList.add("best");
    segment.style.opacity = found.chunks ? 0.12 + (0.88 * (chunk.score - low)) / range : 1;
    segment.addEventListener("click", () => {
      const text = showText({ ...found, passage: chunk }, "");
      byId("main").querySelector(".whole").replaceWith(text);
      const mark = text.querySelector("mark");
      if (mark) mark.scrollIntoView({ block: "center" });
    });
    bar.append(place(segment, chunk.begin, chunk.end, length));
  });
  return bar;
}

function showText(found, query) {
  const text = make("div", { class: "whole", dir: "auto" });
  const passage = found.passage;
  if (!passage || passage.end <= Math.max(passage.begin, found.text_begin)) {
    addMarked(text, found.text, pattern(query));
    return text;
  }
  const cut = cutter(found.text);
  const begin = Math.max(0, passage.begin - found.text_begin);
  const end = passage.end - found.text_begin;
  text.append(cut(0, begin), make("mark", { class: "passage" }, cut(begin, end)), cut(end, undefined));
  return text;
}

async function show() {
  const mine = ++serial;
  const now = state();
  byId("query").value = now.query;
  document.title = now.query ? `${Array.from(now.query).slice(0, 60).join("")} – lmk search` : "lmk search";
  try {
    if (!indexes.length) indexes = (await ask("v1/indexes")).indexes;
    if (mine !== serial) return;
    if (now.doc) await showDocument(now, mine);
    else if (now.query) await showResults(now, mine);
    else {
      showViews(now.views);
      byId("main").replaceChildren();
      const sizes = indexes.map((each) => {
        const size = each.documents === null ? "" : `: ${each.documents.toLocaleString("en")} documents`;
        return each.name + size;
      });
      say(sizes.join(", "));
    }
  } catch (error) {
    if (mine === serial) say(error.message);
  }
}

byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = byId("query").value.trim();
  const query = given.toWellFormed ? given.toWellFormed() : given;
  const next = address({ query, views: chosenViews() });
  if (location.hash === next) show();
  else location.hash = next;
});

byId("access").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", byId("token").value);
  byId("access").hidden = true;
  show();
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches("input");
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    else if (state().doc) location.hash = address({ ...state(), doc: null });
    return;
  }
  if (typing && event.key !== "ArrowDown") return;
  if (event.key === "/") {
    event.preventDefault();
    byId("query").select();
    return;
  }
  const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
  const links = [...document.querySelectorAll(".hits a")];
  if (!step || !links.length) return;
  const at = links.indexOf(document.activeElement);
  const next = at < 0 ? 0 : Math.min(Math.max(at + step, 0), links.length - 1);
  event.preventDefault();
  links[next].focus();
});

window.addEventListener("hashchange", show);
show();
if (!state().query && !state().doc) byId("query").focus();
