"use strict";
const maps = JSON.parse(document.getElementById("data").textContent);
const details = document.getElementById("details");
const pane = document.getElementById("pictures");
const search = document.getElementById("search");
let shown = 0;
let chosen = [];
let scale = 1;

const picture = () => document.querySelector(`.picture[data-map="${shown}"]`);
const svg = () => picture().querySelector("svg");
const map = () => maps[shown];
const all = (selector) => svg().querySelectorAll(selector);

/// An element with text, never markup.
function make(tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

function list(items, className) {
  const element = make("ul", undefined, className);
  for (const item of items) {
    const entry = make("li");
    entry.append(item);
    element.append(entry);
  }
  return element;
}

function link(text, action) {
  const element = make("button", text, "link");
  element.addEventListener("click", action);
  return element;
}

/// Returns the end that decides about a peer, from ranges of peers with the same end.
function ruling(node, direction, peer) {
  let found = null;
  for (const [start, end] of map().nodes[node][direction].rulings) {
    if (start > peer) break;
    found = end;
  }
  return found;
}

function passing(from, to) {
  const ends = [ruling(from, "egress", to), ruling(to, "ingress", from)];
  const key = ends.map((end) => end === null ? null : map().ends[end].passing).join();
  map().texts ??= new Map(map().passing.map(([key, text]) => [key.join(), text]));
  return { ends, text: map().texts.get(key) };
}

function welcome() {
  const known = map();
  details.replaceChildren(make("h2", `${known.nodes.length} nodes, ${known.edges.length} lines`));
  details.append(make("p", "A node is pods of a namespace that no policy distinguishes, or networks. A line is the traffic that policies allow; "
    + "traffic that a pod allows with any peer is shown on the pod."));
  const legend = make("ul", undefined, "legend");
  for (const [colour, text] of [["--open", "any peer may connect: no policy denies anything"], ["--ruled", "policies decide which peers may connect"],
    ["--closed", "all incoming traffic is denied"], ["--net", "networks outside"]]) {
    const entry = make("li");
    const mark = make("span");
    mark.style.background = getComputedStyle(svg()).getPropertyValue(colour);
    entry.append(mark, text);
    legend.append(entry);
  }
  details.append(legend);
  for (const remark of known.remarks) details.append(make("p", remark, "remark"));
  details.append(make("p", "Click a line for the deciding rules, a node for its policies and peers, and a second node with Shift "
    + "for the traffic between the two. Tab and Enter do the same; Escape clears the selection.", "faint"));
}

function showEdge(number) {
  const edge = map().edges[number];
  details.replaceChildren(make("h2", `${edge.from} → ${edge.to}`), make("p", edge.label, "yes"));
  if (edge.isPart) details.append(make("p", "Between some of them only.", "faint"));
  for (const direction of ["egress", "ingress"]) {
    const rules = edge.by.filter(([end]) => end === direction).map(([, text]) => text);
    if (!rules.length) continue;
    const whose = direction === "egress" ? edge.from : edge.to;
    details.append(make("h3", `${direction} of ${whose}, allowed by`), list(rules));
  }
  if (edge.more) details.append(make("p", `and ${edge.more} more rules`, "faint"));
  const single = edge.fromNodes?.length === 1 && edge.toNodes?.length === 1;
  if (single && !map().nodes[edge.fromNodes[0]].folded) {
    details.append(link("All decisions of both ends", () => choose([["node", edge.fromNodes[0]], ["node", edge.toNodes[0]]])));
  }
}

function showEnd(node, direction, peer, whose) {
  const end = ruling(node, direction, peer);
  details.append(make("h3", `${direction} of ${whose}`));
  if (end === null) {
    details.append(make("p", "has no policies", "faint"));
    return;
  }
  details.append(list(map().ends[end].decisions.map(([allows, what, by]) => {
    const entry = make("span");
    entry.append(make("b", allows ? "allow " : "deny ", allows ? "yes" : "no"), what, make("br"), make("span", by, "faint"));
    return entry;
  })));
}

function showPair(from, to) {
  const [source, target] = [map().nodes[from], map().nodes[to]];
  const { text } = passing(from, to);
  details.replaceChildren(make("h2", `${source.name} → ${target.name}`));
  if (text === undefined) details.append(make("p", "Not known: one of them stands for several classes, or both are networks.", "faint"));
  else details.append(text ? make("p", text, "yes") : make("p", "nothing passes", "no"));
  if (text !== undefined) {
    showEnd(from, "egress", to, source.name);
    showEnd(to, "ingress", from, target.name);
  }
  details.append(make("p"), link("The other way round", () => choose([["node", to], ["node", from]])));
}

function peers(number, way) {
  const found = [];
  for (let other = 0; other < map().nodes.length; other++) {
    if (other === number && map().nodes[number].count < 2) continue;
    const [from, to] = way === "egress" ? [number, other] : [other, number];
    const { text } = passing(from, to);
    if (text) found.push([other, text, from, to]);
  }
  return found;
}

function showNode(number) {
  const node = map().nodes[number];
  details.replaceChildren(make("h2", node.name), make("p", `${node.about}${node.labels.length ? ": " + node.labels.join(", ") : ""}`, "faint"));
  for (const [direction, verb, none] of [["ingress", "In", "no peer reaches it"], ["egress", "Out", "it reaches no peer"]]) {
    if (!node.isNetworks) {
      details.append(make("h3", `${verb}: ${node[direction].access}`));
      const policies = node[direction].policies;
      details.append(policies.length ? list(policies) : make("p", "no policy", "faint"));
    }
    const found = peers(number, direction);
    const title = direction === "ingress" ? `Reached by (${found.length})` : `Reaches (${found.length})`;
    details.append(make("h3", title));
    if (!found.length) details.append(make("p", none, "faint"));
    else details.append(list(found.slice(0, 300).map(([other, text, from, to]) => {
      const entry = make("span");
      entry.append(link(map().nodes[other].name, () => choose([["node", from], ["node", to]])), ` ${text}`);
      return entry;
    }), "names"));
  }
  details.append(make("h3", node.isDomains ? "Domain names" : node.isNetworks ? "Networks" : "Pods"), list(node.members, "names"));
  if (node.count > node.members.length) details.append(make("p", `and ${node.count - node.members.length} more`, "faint"));
}

/// Whether an edge begins or ends at a node.
function touches(edge, number) {
  const holds = (nodes, other) => nodes === null ? other !== null && other.includes(number) : nodes.includes(number);
  return holds(edge.fromNodes, edge.toNodes) || holds(edge.toNodes, edge.fromNodes);
}

function choose(what) {
  chosen = what;
  for (const element of all(".chosen, .near")) element.classList.remove("chosen", "near");
  svg().classList.toggle("focused", what.length > 0);
  const near = (kind, number) => {
    for (const element of all(`[data-${kind}="${number}"]`)) element.classList.add("near");
  };
  for (const [kind, number] of what) {
    for (const element of all(`[data-${kind}="${number}"]`)) element.classList.add("chosen", "near");
  }
  const nodes = what.filter(([kind]) => kind === "node").map(([, number]) => number);
  map().edges.forEach((edge, number) => {
    const is = what.some(([kind, other]) => kind === "edge" && other === number);
    if (!is && !(nodes.length && nodes.every((node) => touches(edge, node)))) return;
    near("edge", number);
    near("label", number);
    for (const node of [...(edge.fromNodes ?? []), ...(edge.toNodes ?? [])]) near("node", node);
  });
  const [first, second] = what;
  if (!first) welcome();
  else if (first[0] === "edge") showEdge(first[1]);
  else if (second) showPair(first[1], second[1]);
  else showNode(first[1]);
}

function chosenBy(event) {
  const element = event.target.closest("[data-node], [data-edge]");
  if (!element) return false;
  const kind = element.dataset.node === undefined ? "edge" : "node";
  const it = [kind, Number(element.dataset[kind])];
  const extend = event.shiftKey && kind === "node" && chosen[0]?.[0] === "node";
  choose(extend ? [chosen[0], it] : [it]);
  return true;
}

function applyTiers() {
  const off = new Set([...document.querySelectorAll("#tiers input")].filter((box) => !box.checked).map((box) => Number(box.value)));
  map().edges.forEach((edge, number) => {
    const tiers = edge.tiers.length ? edge.tiers : [-1];
    const hidden = tiers.every((tier) => off.has(tier));
    for (const element of all(`[data-edge="${number}"], [data-label="${number}"]`)) element.classList.toggle("off", hidden);
  });
}

function applySearch() {
  const wanted = search.value.trim().toLowerCase();
  map().nodes.forEach((node, number) => {
    const texts = [node.name, ...node.members, ...node.labels, ...node.ingress.policies, ...node.egress.policies];
    const found = wanted && texts.some((text) => text.toLowerCase().includes(wanted));
    for (const element of all(`[data-node="${number}"]`)) {
      element.classList.toggle("hit", Boolean(found));
      element.classList.toggle("miss", Boolean(wanted) && !found);
    }
  });
  all(".node.hit")[0]?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

function zoom(to) {
  const base = svg().viewBox.baseVal;
  scale = Math.min(4, Math.max(.05, to));
  svg().setAttribute("width", base.width * scale);
  svg().setAttribute("height", base.height * scale);
}

function fit() {
  const base = svg().viewBox.baseVal;
  zoom(Math.min(1.25, pane.clientWidth / base.width, pane.clientHeight / base.height));
}

function show(number) {
  picture().hidden = true;
  shown = number;
  picture().hidden = false;
  const tiers = document.getElementById("tiers");
  for (const label of tiers.querySelectorAll("label")) label.remove();
  const without = map().edges.some((edge) => !edge.tiers.length) ? [["no policy", -1]] : [];
  for (const [name, value] of [...map().tiers.map((name, value) => [name, value]), ...without]) {
    const label = make("label");
    const box = make("input");
    box.type = "checkbox";
    box.checked = true;
    box.value = value;
    box.addEventListener("change", applyTiers);
    const swatch = make("span", undefined, "swatch");
    swatch.style.background = getComputedStyle(svg()).getPropertyValue(value < 0 ? "--grey" : `--c${value % 8}`);
    label.append(box, swatch, name);
    tiers.append(label);
  }
  tiers.hidden = !tiers.querySelector("label");
  choose([]);
  applySearch();
  fit();
}

if (maps.length > 1) {
  const families = document.getElementById("families");
  families.hidden = false;
  maps.forEach((known, number) => {
    const label = make("label");
    const box = make("input");
    box.type = "radio";
    box.name = "family";
    box.checked = number === 0;
    box.addEventListener("change", () => show(number));
    label.append(box, known.family);
    families.append(label);
  });
}
let held = null;
pane.addEventListener("pointerdown", (event) => {
  held = event.button === 0 && !event.target.closest("[data-node], [data-edge]")
    ? { x: event.clientX, y: event.clientY, left: pane.scrollLeft, top: pane.scrollTop } : null;
});
pane.addEventListener("pointermove", (event) => {
  if (!held) return;
  pane.classList.add("held");
  pane.scrollTo(held.left - event.clientX + held.x, held.top - event.clientY + held.y);
});
for (const kind of ["pointerup", "pointerleave"]) {
  pane.addEventListener(kind, () => { held = null; pane.classList.remove("held"); });
}
pane.addEventListener("click", (event) => { if (!chosenBy(event) && event.detail === 2) choose([]); });
pane.addEventListener("keydown", (event) => {
  if ((event.key === "Enter" || event.key === " ") && chosenBy(event)) event.preventDefault();
});
pane.addEventListener("wheel", (event) => {
  if (!event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  zoom(scale * (event.deltaY < 0 ? 1.15 : 1 / 1.15));
}, { passive: false });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") choose([]); });
search.addEventListener("input", applySearch);
document.getElementById("in").addEventListener("click", () => zoom(scale * 1.25));
document.getElementById("out").addEventListener("click", () => zoom(scale / 1.25));
document.getElementById("fit").addEventListener("click", fit);
show(0);
