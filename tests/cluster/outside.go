package main

import (
	"errors"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

const apiAddress = nodeIP + ":6443"

// listenOutside returns a socket on the loopback interface of the host. A socket
// stays in the network namespace of its creation, independent of the process
// that accepts from it.
func listenOutside() (*os.File, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	return listener.(*net.TCPListener).File()
}

// serveOutside forwards connections of that socket, here descriptor 3, to the
// API server, and writes a kubeconfig for it. The file is written atomically:
// its existence means that the cluster is ready.
func serveOutside(p *pki, kubeconfig string) error {
	unix.CloseOnExec(3)
	file := os.NewFile(3, "listener")
	if file == nil {
		return errors.New("descriptor 3 is not open")
	}
	listener, err := net.FileListener(file)
	if err != nil {
		return err
	}
	file.Close()
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go forward(client.(*net.TCPConn))
		}
	}()
	if err := p.kubeconfig("admin", "https://"+listener.Addr().String(), kubeconfig+".new"); err != nil {
		return err
	}
	return os.Rename(kubeconfig+".new", kubeconfig)
}

func forward(client *net.TCPConn) {
	defer client.Close()
	conn, err := net.Dial("tcp", apiAddress)
	if err != nil {
		return
	}
	server := conn.(*net.TCPConn)
	defer server.Close()
	done := make(chan struct{})
	go func() {
		io.Copy(server, client)
		server.CloseWrite()
		close(done)
	}()
	io.Copy(client, server)
	client.CloseWrite()
	<-done
}
