#!/usr/bin/env python3
"""A tiny API to try orla's HTTP capabilities with: python3 server.py [PORT]"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

WEATHER = {"oslo": 4.5, "lima": 19.0, "são paulo": 24.25}


class Api(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        url = urlsplit(self.path)
        if url.path == "/openapi.json":
            with open(__file__.replace("server.py", "openapi.json"), encoding="utf-8") as file:
                return self.answer(200, json.load(file))
        if not url.path.startswith("/weather/"):
            return self.answer(404, {"message": f"nothing is at {url.path}"})
        city = unquote(url.path.removeprefix("/weather/"))
        degrees = WEATHER.get(city.lower())
        if degrees is None:
            return self.answer(404, {"message": f"no weather is known for {city}"})
        unit = parse_qs(url.query).get("unit", ["celsius"])[0]
        if unit == "fahrenheit":
            degrees = degrees * 9 / 5 + 32
        self.answer(200, {"city": city, "degrees": degrees, "unit": unit})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.headers.get("authorization") != "Bearer let-me-in":
            return self.answer(401, {"message": "who are you?"})
        self.answer(201, {"noted": json.loads(body or b"null")})

    def answer(self, status, value):
        body = json.dumps(value, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8090
    ThreadingHTTPServer(("127.0.0.1", port), Api).serve_forever()
