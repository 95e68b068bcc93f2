"""An authorization server, and an MCP server and an HTTP API that take its tokens, on one port.

Access tokens are `at-SUBJECT-NUMBER`. Each sign-in is that of the subject in the query parameter `as` of the
authorization request, or of `person`. A refresh token counts once. GET /revoke makes all access tokens
invalid; GET /seen tells what was asked.
"""
import base64, hashlib, http.server, json, threading, urllib.parse

lock, counter, seen = threading.Lock(), 0, []
codes, refreshes, tokens, clients, devices = {}, {}, {}, {}, {}
TOOLS = [{"name": name, "description": name, "inputSchema": {"type": "object"}} for name in ("who", "admin")]

def number():
    global counter
    with lock:
        counter += 1
        return counter

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def reply(self, status, value, **headers):
        body = json.dumps(value).encode() if value is not None else b""
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        url = urllib.parse.urlparse(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        base = "http://127.0.0.1:%d" % server.server_address[1]
        if url.path == "/.well-known/oauth-protected-resource/mcp":
            return self.reply(200, {"resource": base + "/mcp", "authorization_servers": [base + "/as"]})
        if url.path == "/.well-known/oauth-authorization-server/as":
            return self.reply(200, {
                "issuer": base + "/as", "authorization_endpoint": base + "/authorize", "token_endpoint": base + "/token",
                "registration_endpoint": base + "/register", "device_authorization_endpoint": base + "/device",
                "response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"],
                "scopes_supported": ["tools", "admin", "offline_access"],
                "authorization_response_iss_parameter_supported": True,
                "token_endpoint_auth_methods_supported": ["none"]})
        if url.path == "/.well-known/oauth-protected-resource/api":
            return self.reply(200, {"resource": base + "/api", "authorization_servers": [base + "/as"]})
        if url.path.startswith("/api"):
            return self.api(base)
        if url.path == "/authorize":
            assert query["resource"] in (base + "/mcp", base + "/api") and query["code_challenge_method"] == "S256", query
            assert query["redirect_uri"] in clients[query["client_id"]]["redirect_uris"], query
            code = "code-%d" % number()
            codes[code] = dict(query, subject=query.get("as", "person"))
            back = urllib.parse.urlencode({"code": code, "state": query["state"], "iss": base + "/as"})
            return self.reply(302, None, Location=query["redirect_uri"] + "?" + back)
        if url.path == "/approve":
            devices[query["code"]] = "person"
            return self.reply(200, {})
        if url.path == "/revoke":
            tokens.clear()
            return self.reply(200, {})
        if url.path == "/seen":
            return self.reply(200, seen)
        self.reply(404, {})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        if self.path == "/mcp":
            return self.mcp(json.loads(body))
        if self.path == "/register":
            client = "client-%d" % number()
            clients[client] = json.loads(body)
            return self.reply(201, dict(clients[client], client_id=client))
        form = dict(urllib.parse.parse_qsl(body))
        if self.path == "/device":
            base = "http://127.0.0.1:%d" % server.server_address[1]
            devices["AB-CD"] = None
            return self.reply(200, {"device_code": "device", "user_code": "AB-CD", "verification_uri": base + "/approve",
                                    "expires_in": 60, "interval": 0.1})
        assert self.path == "/token"
        seen.append(["token", form["grant_type"]])
        self.token(form)

    def token(self, form):
        grant = form["grant_type"]
        if grant == "authorization_code":
            code = codes.pop(form["code"], None)
            challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=").decode()
            if code is None or code["code_challenge"] != challenge or code["redirect_uri"] != form["redirect_uri"]:
                return self.reply(400, {"error": "invalid_grant"})
            subject, scope = code["subject"], code.get("scope", "")
        elif grant == "refresh_token":
            with lock:
                known = refreshes.pop(form["refresh_token"], None)
            if known is None:
                return self.reply(400, {"error": "invalid_grant", "error_description": "used already"})
            subject, scope = known
        elif grant.endswith(":device_code"):
            if devices["AB-CD"] is None:
                return self.reply(400, {"error": "authorization_pending"})
            subject, scope = devices["AB-CD"], "tools"
        elif grant == "client_credentials":
            assert form.get("client_secret") or self.headers["Authorization"].startswith("Basic "), form
            basic = base64.b64decode(self.headers.get("Authorization", "Basic ").split(" ")[1]).decode()
            subject, scope = form.get("client_id") or basic.split(":")[0], form.get("scope", "")
        else:
            return self.reply(400, {"error": "unsupported_grant_type"})
        count = number()
        access, refresh = "at-%s-%d" % (subject, count), "rt-%s-%d" % (subject, count)
        tokens[access], refreshes[refresh] = scope.split(), (subject, scope)
        self.reply(200, {"access_token": access, "token_type": "Bearer", "expires_in": 3600, "refresh_token": refresh, "scope": scope})

    def api(self, base):
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in tokens:
            challenge = 'Bearer resource_metadata="%s/.well-known/oauth-protected-resource/api"' % base
            return self.reply(401, {}, WWW_Authenticate=challenge)
        self.reply(200, {"who": token.split("-")[1], "scopes": tokens[token]})

    def mcp(self, message):
        base = "http://127.0.0.1:%d" % server.server_address[1]
        metadata = 'resource_metadata="%s/.well-known/oauth-protected-resource/mcp"' % base
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        method = message["method"]
        is_open = OPEN and method != "tools/call"
        if token not in tokens and not is_open:
            return self.reply(401, {}, WWW_Authenticate='Bearer %s, scope="tools"' % metadata)
        if "id" not in message:
            return self.reply(202, None)
        if method == "initialize":
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "a", "version": "1"}}
        elif method == "tools/list":
            result = {"tools": TOOLS}
        elif method == "tools/call":
            name, subject = message["params"]["name"], token.split("-")[1]
            seen.append([name, subject])
            if name == "admin" and "admin" not in tokens[token]:
                challenge = 'Bearer error="insufficient_scope", scope="admin", %s' % metadata
                return self.reply(403, {}, WWW_Authenticate=challenge)
            result = {"content": [{"type": "text", "text": "you are " + subject}]}
        else:
            return self.reply(200, {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no"}})
        self.reply(200, {"jsonrpc": "2.0", "id": message["id"], "result": result})

    def do_DELETE(self):
        self.reply(200, {})

    def log_message(self, *_):
        pass

import os
OPEN = bool(os.environ.get("OPEN"))
http.server.ThreadingHTTPServer.request_queue_size = 128
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
