"""The page of a server in a browser without a window, by chromedriver and Python's own library.

browser.py URL [FOLDER]: what is wrong ends it with an error; pictures go into the folder.
"""

import base64
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request

url = sys.argv[1]
folder = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
ODD = "<img src=x onerror=alert(1)>"
driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
port = next(found[1] for line in driver.stdout if (found := re.search(r"started successfully on port (\d+)", line)))


def ask(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{method} {path}: {error.read().decode()[:2000]}") from None


# The system's own look-ups go nowhere either: what the page asks for is all that there is.
arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,1000", "--no-first-run", "--no-proxy-server"]
chrome = {"args": arguments, "binary": shutil.which("chromium") or shutil.which("google-chrome")}
wanted = {"browserName": "chrome", "goog:chromeOptions": chrome, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
session = ""


def run(script, *args):
    return ask("POST", f"{session}/execute/sync", {"script": script, "args": list(args)})


def tool(command, **params):
    return ask("POST", f"{session}/goog/cdp/execute", {"cmd": command, "params": params})


def wait(what, script, *args):
    until = time.monotonic() + 20
    while not (value := run(script, *args)):
        assert time.monotonic() < until, f"never came: {what}; the page says: {run('return document.body.innerText')}"
        time.sleep(0.05)
    return value


def find(css):
    return [found[ELEMENT] for found in ask("POST", f"{session}/elements", {"using": "css selector", "value": css})]


def fill(css, text):
    [field] = find(css)
    ask("POST", f"{session}/element/{field}/clear", {})
    ask("POST", f"{session}/element/{field}/value", {"text": text})


def click(css):
    [button] = find(css)
    ask("POST", f"{session}/element/{button}/click", {})


def text(css):
    return run("return document.querySelector(arguments[0]).textContent", css)


def media(**features):
    tool("Emulation.setEmulatedMedia", features=[{"name": name.replace("_", "-"), "value": value} for name, value in features.items()])


def picture(name):
    if folder:
        shot = tool("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        (folder / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))


# Every text that can be seen, with its contrast against what lies behind it; fields too, but not what is switched off.
CONTRAST = """
const part = (value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * part(r / 255) + 0.7152 * part(g / 255) + 0.0722 * part(b / 255);
const colour = (text) => { const parts = text.match(/[\\d.]+/g).map(Number); return [parts.slice(0, 3), parts[3] ?? 1]; };
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const [rgb, alpha] = colour(getComputedStyle(at).backgroundColor);
    if (alpha === 1) return rgb;
    if (alpha > 0) throw new Error("a colour that can be seen through");
  }
  return matchMedia("(prefers-color-scheme: dark)").matches ? [0, 0, 0] : [255, 255, 255];
};
const seen = [...document.querySelectorAll("body *")].filter((element) => element.getClientRects().length > 0 && !element.disabled
  && (["INPUT", "TEXTAREA", "SELECT"].includes(element.tagName) || [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())));
return seen.map((element) => {
  const [a, b] = [light(colour(getComputedStyle(element).color)[0]), light(behind(element))];
  return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), `${element.tagName} ${element.className} ${element.textContent.slice(0, 40)}`];
});
"""


def check_contrast(scheme):
    ratios = run(CONTRAST)
    assert len(ratios) > 60, f"{len(ratios)} texts alone"
    low = [ratio for ratio in ratios if ratio[0] < 4.5]
    assert not low, f"{scheme}: {low}"
    return min(ratio[0] for ratio in ratios)


def check_names():
    """Every part that takes input has a role and a name; the page has its landmarks, and its headings skip no level."""
    for element in find("a[href], button, input, select, textarea, [tabindex='0'], main, nav, main section, table, [role]"):
        if not ask("GET", f"{session}/element/{element}/displayed"):
            continue
        role, name = (ask("GET", f"{session}/element/{element}/computed{what}") for what in ("role", "label"))
        told = ask("GET", f"{session}/element/{element}/property/outerHTML")[:120]
        assert role and role not in ("generic", "none"), f"no role: {told}"
        assert name or role in ("main", "table", "status", "alert"), f"{role} without a name: {told}"
    roles = run("return ['header', 'main', 'footer', 'nav'].map((name) => document.querySelectorAll(name).length)")
    assert roles == [1, 1, 1, 1], roles
    levels = run("return [...document.querySelectorAll('h1, h2, h3')].filter((title) => title.getClientRects().length).map((title) => Number(title.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1 and all(after <= before + 1 for before, after in zip(levels, levels[1:])), levels
    live = run("return ['#state', '#sentence-status', '#sentence-fault', '#chat-status', '#chat-left-log'].map((id) => document.querySelector(id).getAttribute('role'))")
    assert live == ["status", "status", "alert", "status", "log"], live


def check_keyboard():
    """Tab leads to all that takes input, and where it is can be seen."""
    run("document.activeElement.blur(); window.getSelection().removeAllRanges(); window.scrollTo(0, 0)")
    wanted = run("return [...document.querySelectorAll('a[href], button, input, select, textarea, [tabindex=\"0\"]')].filter((part) => part.getClientRects().length && !part.disabled).length")
    reached = set()
    for _ in range(wanted + 2):
        keys = {"type": "key", "id": "keys", "actions": [{"type": kind, "value": "\ue004"} for kind in ("keyDown", "keyUp")]}
        ask("POST", f"{session}/actions", {"actions": [keys]})
        name, style, width = run("""const at = document.activeElement; const style = getComputedStyle(at);
            at.dataset.reached ??= String(Math.random()); return [at === document.body ? "" : at.dataset.reached, style.outlineStyle, parseFloat(style.outlineWidth)]""")
        if name:
            reached.add(name)
            assert style != "none" and width >= 2, f"the focus cannot be seen: {run('return document.activeElement.outerHTML')[:120]}"
    assert len(reached) == wanted, f"{len(reached)} of {wanted} are reached by Tab"
    return wanted


try:
    session = f"session/{ask('POST', 'session', {'capabilities': {'alwaysMatch': wanted}})['sessionId']}"
    media(prefers_color_scheme="light", prefers_reduced_motion="no-preference")
    ask("POST", f"{session}/url", {"url": url})
    wait("the state of the server", "return document.querySelector('#state').dataset.state === 'ready'")
    names = run("return [...document.querySelectorAll('#models th')].map((cell) => cell.textContent)")
    assert names == ["tiny", ODD, "left", "parrot", "loud"], names
    assert run("return document.querySelectorAll('img').length") == 0, "a name was taken for markup"

    fill("#sentence-text", "w1 w2")
    fill("#sentence-lines", "w3 w4\nw1 w2\nw2")
    run("document.querySelector('#sentence-right').value = 'left'")
    click("#sentence-form button")
    wait("the nearest lines", "return document.querySelectorAll('#sentence-right-list li').length === 3")
    for side, title in (("left", "tiny"), ("right", "left")):
        first = run("return [...document.querySelector(arguments[0]).querySelectorAll('li:first-child .line > span')].map((span) => span.textContent)", f"#sentence-{side}-list")
        assert (first, text(f"#sentence-{side}-title")) == (["w1 w2", "1.0000"], title), (side, first)
    values = [run("return [...document.querySelectorAll(arguments[0] + ' .value')].map((span) => span.textContent)", f"#sentence-{side}-list") for side in ("left", "right")]
    assert values[0] != values[1], f"the adapter changes nothing: {values}"
    assert "nearest by left: w1 w2" in text("#sentence-status"), text("#sentence-status")

    fill("#chat-text", "abc")
    click("#chat-send")
    wait("both answers", "return document.querySelector('#chat-status').textContent === 'both have answered'")
    said = [run("return [...document.querySelectorAll(arguments[0] + ' p')].map((line) => line.textContent)", f"#chat-{side}-log") for side in ("left", "right")]
    assert said == [["abc", "cba"], ["abc", "CBA"]], said
    assert text("#chat-left-told").startswith("3 tokens"), text("#chat-left-told")
    wait("the counts", "return [...document.querySelectorAll('#models tr')].some((row) => row.textContent.startsWith('loudtext1'))")
    wait("the times", "return document.querySelector('#latency').textContent.includes('to the first token')")

    assert not re.search(r"\de[+-]\d|NaN|undefined|Infinity", run("return document.body.innerText")), "a number that nobody reads"

    check_names()
    reached = check_keyboard()
    picture("light")
    contrast = {"light": check_contrast("light")}
    media(prefers_color_scheme="dark", prefers_reduced_motion="reduce")
    contrast["dark"] = check_contrast("dark")
    moving = run("return [...document.querySelectorAll('*')].flatMap((element) => [null, '::before'].map((part) => getComputedStyle(element, part).transitionDuration)).filter((time) => parseFloat(time) > 0)")
    assert not moving, moving
    picture("dark")
    media(prefers_color_scheme="light", prefers_reduced_motion="reduce")
    tool("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=1, mobile=True)
    wide = run("return document.documentElement.scrollWidth")
    assert wide <= 360, f"{wide} px at 360"
    picture("narrow")

    # A failure is told in words, and what was written stays.
    tool("Emulation.clearDeviceMetricsOverride")
    fill("#chat-text", "oh!")
    click("#chat-send")
    wait("what went wrong", "return document.querySelector('#chat-fault').textContent.includes('parrot: the server failed')")
    click("#chat-anew")
    assert text("#chat-left-log") == "" and run("return document.activeElement.id") == "chat-text"

    worse = [entry for entry in ask("POST", f"{session}/se/log", {"type": "browser"}) if entry["level"] != "DEBUG"]
    assert not worse, worse
    events = [json.loads(entry["message"])["message"] for entry in ask("POST", f"{session}/se/log", {"type": "performance"})]
    asked = {event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"}
    outside = [other for other in asked if not other.startswith((url, "data:"))]
    assert not outside and len(asked) >= 4, (outside, asked)
    print(f"contrast at least {contrast['light']:.1f} in light, {contrast['dark']:.1f} in dark; {reached} parts by Tab; {len(asked)} addresses, all of the server")
finally:
    if session:
        ask("DELETE", session)
    driver.kill()
