import static java.nio.charset.StandardCharsets.UTF_8;

import io.grpc.Grpc;
import io.grpc.HandlerRegistry;
import io.grpc.InsecureServerCredentials;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.ServerMethodDefinition;
import io.grpc.stub.ServerCalls;
import io.grpc.stub.StreamObserver;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.UncheckedIOException;

/** A gRPC server with the defaults of grpc-java, which does what ../server.py does, without its name. */
public final class Server {
  private Server() {}

  public static void main(String[] arguments) throws IOException {
    int port = Integer.parseInt(arguments[0]);
    Grpc.newServerBuilderForPort(port, InsecureServerCredentials.create())
        .fallbackHandlerRegistry(new EveryMethod())
        .build()
        .start();
    System.out.println("ready");
    System.in.transferTo(OutputStream.nullOutputStream());
    System.exit(0);
  }

  private static final class EveryMethod extends HandlerRegistry {
    @Override
    public ServerMethodDefinition<?, ?> lookupMethod(String name, String authority) {
      MethodDescriptor<String, String> method =
          MethodDescriptor.newBuilder(new Text(), new Text())
              .setType(MethodType.BIDI_STREAMING)
              .setFullMethodName(name)
              .build();
      return ServerMethodDefinition.create(
          method, ServerCalls.asyncBidiStreamingCall(Responder::new));
    }
  }

  private static final class Text implements MethodDescriptor.Marshaller<String> {
    @Override
    public InputStream stream(String value) {
      return new ByteArrayInputStream(value.getBytes(UTF_8));
    }

    @Override
    public String parse(InputStream stream) {
      try {
        return new String(stream.readAllBytes(), UTF_8);
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }
  }

  private record Responder(StreamObserver<String> responses) implements StreamObserver<String> {
    @Override
    public void onNext(String message) {
      String[] parts = message.split(" ", 2);
      try {
        Thread.sleep(Long.parseLong(parts[0]) * 1000);
      } catch (InterruptedException error) {
        throw new IllegalStateException(error);
      }
      if (!parts[1].isEmpty()) {
        responses.onNext(parts[1]);
      }
    }

    @Override
    public void onError(Throwable error) {}

    @Override
    public void onCompleted() {
      responses.onCompleted();
    }
  }
}
