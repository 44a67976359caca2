// The server of HTTP-01 challenges, which cert-manager starts for each of them.
package main

import (
	"flag"
	"log"

	"github.com/cert-manager/cert-manager/pkg/issuer/acme/http/solver"
	"github.com/go-logr/logr"
)

func main() {
	var server solver.HTTP01Solver
	flag.IntVar(&server.ListenPort, "listen-port", 8089, "port")
	flag.StringVar(&server.Domain, "domain", "", "hostname of the challenge")
	flag.StringVar(&server.Token, "token", "", "token of the challenge")
	flag.StringVar(&server.Key, "key", "", "what to answer")
	flag.Parse()
	log.Fatal(server.Listen(logr.Discard()))
}
