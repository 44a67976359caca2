// A gRPC server with the defaults of grpc-go, which does what ../server.py does, without its name.
package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
)

// text is the codec of messages that are text.
type text struct{}

func (text) Name() string { return "text" }

func (text) Marshal(message any) ([]byte, error) { return []byte(*message.(*string)), nil }

func (text) Unmarshal(data []byte, message any) error {
	*message.(*string) = string(data)
	return nil
}

func respond(_ any, stream grpc.ServerStream) error {
	for {
		var message string
		if err := stream.RecvMsg(&message); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		seconds, response, _ := strings.Cut(message, " ")
		wait, err := strconv.Atoi(seconds)
		if err != nil {
			return err
		}
		time.Sleep(time.Duration(wait) * time.Second)
		if response == "" {
			continue
		}
		if err := stream.SendMsg(&response); err != nil {
			return err
		}
	}
}

func main() {
	listener, err := net.Listen("tcp", ":"+os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodec(text{}), grpc.UnknownServiceHandler(respond))
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	fmt.Println("ready")
	log.Fatal(server.Serve(listener))
}
