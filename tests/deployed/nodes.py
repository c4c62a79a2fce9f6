"""``python nodes.py CERTIFICATE KEY TOKEN``: the part of the Kubernetes API that knows nodes, with TLS on port 443. The
zone of node-0 is zone-a, that of node-1 zone-b, and so on."""

import http.server
import json
import re
import ssl
import sys


class Nodes(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        node = re.fullmatch(r"/api/v1/nodes/(node-(\d))", self.path)
        if node is None or self.headers["Authorization"] != f"Bearer {sys.argv[3]}":
            self.send_error(403)
            return
        labels = {"topology.kubernetes.io/zone": f"zone-{'ab'[int(node[2]) % 2]}"}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"metadata": {"name": node[1], "labels": labels}}).encode())


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
server = http.server.ThreadingHTTPServer(("0.0.0.0", 443), Nodes)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
