"""A server that answers the way the service does, without a detector."""

import base64
import io
import json
import queue
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
from PIL import Image

from discopatch.report.heatmap import colour_layer
from discopatch.serve.page import CONTENT_SECURITY_POLICY, page_html


def uri(im, format="PNG"):
    b = io.BytesIO(); im.save(b, format)
    return f"data:image/{format.lower()};base64,{base64.b64encode(b.getvalue()).decode()}"


class State:
    def __init__(self, n=140, alarm=True, token=None, images=()):
        self.token = token
        self.listeners = []
        self.lock = threading.Lock()
        self.entries = []
        self.thumbs = {}
        rng = np.random.default_rng(0)
        t0 = time.time() - n * 7
        e = 0.0
        self.images = images
        for i in range(n):
            shift = 1.6 if i > n * 0.72 and alarm else 0
            s = float(rng.gamma(4, 0.5) + shift)
            e = max(-2, e + (rng.normal(0.12, 0.15) if i > n * 0.75 and alarm else rng.normal(-0.03, 0.12)))
            self.add(f"line-2/frame-{i:05d}.jpg", s, t0 + i * 7, e, thumb=images[i % len(images)] if images else None,
                     error="truncated: JPEG cut short or damaged: copy it again" if i in (40, 111) else None)
        self.alarm = alarm
        self.alarm_time = self.entries[int(n * 0.9)]["time"] if n and alarm else None

    def add(self, name, score, t, e, thumb=None, error=None):
        i = len(self.entries) + 1
        entry = {"id": i, "time": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(t)), "name": name, "evidence": e}
        if error:
            entry["error"] = error
        else:
            z = {"acquisition": score - 2.2, "content": 0.4 * score - 1, "place": 0.6 * score - 1.5}
            entry |= {"score": score, "p_value": float(np.clip(np.exp(-score + 1), 1 / 200, 1)), "is_ood": score > 4.6,
                      "components": z, "spoke": [k for k, v in z.items() if v > 2]}
        if thumb is not None:
            self.thumbs[i] = thumb
        entry["thumbnail"] = f"/v1/detectors/camera-3/recent/{i}/thumbnail" if thumb is not None else None
        self.entries.append(entry)
        for q in list(self.listeners):
            q.put(entry)
        return entry

    def monitor(self):
        n = len(self.entries)
        last = self.entries[-1]["evidence"] if n else 0.0
        s = {"images": n - 2 if n else 0, "refused": 2 if n else 0, "evidence": 10 ** last, "log10_evidence": last, "threshold": 100.0,
             "alarm": self.alarm, "alarm_at": 126 if self.alarm else None, "since": {"image": 103, "earliest": 99, "latest": 108} if self.alarm else None,
             "direction": "higher" if self.alarm else None, "component": "acquisition" if self.alarm else None,
             "telling": [{"name": "line-2/frame-00121.jpg", "image": 121, "score": 5.1, "p_value": 0.005}] if self.alarm else [],
             "text": "The images have changed since about image 103 (99 to 108): scores are higher, most in how they were taken." if self.alarm
             else f"{n} images, no sign of a change: the evidence is {10**last:.2g} where an alarm takes 100."}
        alarms = [{"id": 1, "time": self.alarm_time, "text": s["text"]}] if self.alarm else []
        return s, alarms


def server(state, detectors=("camera-3",)):
    class H(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *a):
            pass

        def send(self, body, kind="application/json", status=200, **h):
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            for k, v in h.items():
                self.send_header(k.replace("_", "-"), v)
            self.end_headers()
            self.wfile.write(body)

        def refuse(self):
            if state.token and self.headers.get("Authorization") != f"Bearer {state.token}":
                self.send({"title": "Unauthorized", "status": 401, "detail": "Give the token."}, "application/problem+json", 401)
                return True

        def do_GET(self):
            path = self.path.split("?")[0]
            if path == "/":
                return self.send(page_html().encode(), "text/html; charset=utf-8", Content_Security_Policy=CONTENT_SECURITY_POLICY)
            if self.refuse():
                return
            if path == "/v1/detectors":
                return self.send({"detectors": [{"name": n} for n in detectors]})
            rest = path.split("/")[4:]
            if not rest:
                return self.send({"name": path.split("/")[3], "threshold": 4.6, "guarantee": {"rate": 0.01, "n_calibration": 199,
                    "text": "At most 1 % of normal images are flagged, on average. It rests on 199 held-out normal images."},
                    "settings": {"weights": "natural-v2", "head": "components", "format": "onnx"}, "calibration": {"edges": [0.3, 2, 5.0], "counts": [3, 4]}})
            if rest == ["recent"]:
                return self.send({"entries": state.entries[::-1][:300]})
            if rest[0] == "recent":
                return self.send(state.thumbs[int(rest[1])], "image/jpeg")
            if rest == ["monitor"]:
                s, a = state.monitor()
                return self.send(s | {"alarms": a})
            if rest == ["events"]:
                q = queue.Queue(); state.listeners.append(q)
                self.send_response(200); self.send_header("Content-Type", "text/event-stream"); self.send_header("Connection", "close"); self.end_headers()
                self.wfile.write(b": hello\n\n"); self.wfile.flush()
                while True:
                    e = q.get()
                    if e is None:
                        self.close_connection = True
                        return
                    self.wfile.write(f"id: {e['id']}\nevent: prediction\ndata: {json.dumps(e)}\n\n".encode())
                    self.wfile.write(f"event: monitor\ndata: {json.dumps(state.monitor()[0])}\n\n".encode()); self.wfile.flush()
            self.send({"title": "Not found", "status": 404, "detail": "no such"}, "application/problem+json", 404)

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            if self.refuse():
                return
            rest = self.path.split("/")[4:]
            if rest == ["monitor", "restart"]:
                state.alarm = False
                return self.send(state.monitor()[0])
            head, _, content = body.partition(b"\r\n\r\n")
            content = content.rsplit(b"\r\n--", 1)[0]
            name = head.decode().split('filename="')[1].split('"')[0]
            try:
                im = Image.open(io.BytesIO(content)).convert("RGB").resize((256, 256))
            except Exception:
                im = None
            if rest == ["score"]:
                score = 15.8 if im is None or "blur" in name else 2.5
                th = None
                if im is not None:
                    b = io.BytesIO(); im.resize((96, 96)).save(b, "JPEG"); th = b.getvalue()
                e = state.add(name, score, time.time(), state.entries[-1]["evidence"] + 0.1 if state.entries else 0.0, thumb=th,
                              error=None if im is not None else "not an image: give JPEG, PNG or another image")
                p = {k: v for k, v in e.items() if k not in ("id", "time", "thumbnail", "evidence")}
                return self.send({"detector": "camera-3", "predictions": [p], "monitor": state.monitor()[0]})
            if rest == ["explain"]:
                yy, xx = np.mgrid[0:64, 0:64]
                m = np.exp(-(((xx - 42) ** 2 + (yy - 24) ** 2) / 160)).astype(np.float32)
                layer = colour_layer(m, size=(256, 256))
                return self.send({"name": name, "reasons": [{"id": "blur", "z": 28.4, "text": "less fine detail than normal"}],
                    "components": [{"name": "acquisition", "z": 13.6, "text": "how it was taken: less fine detail"}],
                    "image": uri(im), "heatmap": uri(layer), "overlay": uri(Image.alpha_composite(im.convert("RGBA"), layer).convert("RGB"))})

    class S(ThreadingHTTPServer):
        daemon_threads = True

    s = S(("127.0.0.1", 0), H)
    threading.Thread(target=s.serve_forever, daemon=True).start()
    return s
