"""A gRPC server with the defaults of grpcio, on a port and with a name for its metadata. It knows every method. A message is a number of seconds and
a text: after these seconds the text is sent back, unless it is empty. Ends with its standard input."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import grpc

# Calls wait, each in a thread of its own.
THREADS = 100


class EveryMethod(grpc.GenericRpcHandler):
    def service(self, _):
        return grpc.stream_stream_rpc_method_handler(respond)


def respond(messages, context):
    context.send_initial_metadata([("server", sys.argv[2])])
    for message in messages:
        seconds, text = message.decode().split(" ", 1)
        time.sleep(int(seconds))
        if text:
            yield text.encode()


def main() -> None:
    server = grpc.server(ThreadPoolExecutor(THREADS), handlers=[EveryMethod()])
    server.add_insecure_port(f"0.0.0.0:{sys.argv[1]}")
    server.start()
    print("ready", flush=True)
    sys.stdin.read()
    server.stop(None)


if __name__ == "__main__":
    main()
