// An OpenID provider for tests/oidc/run: the example of zitadel/oidc, with tokens that end after the given number of seconds, and a client that may return after it
// has signed out.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/op"
)

// client may return to URLs after a sign-out.
type client struct {
	op.Client
	logouts []string
}

func (c client) PostLogoutRedirectURIs() []string { return c.logouts }

// clients returns the client of the test.
type clients struct {
	*storage.Storage
	logouts []string
}

func (c clients) GetClientByClientID(ctx context.Context, id string) (op.Client, error) {
	found, err := c.Storage.GetClientByClientID(ctx, id)
	if err != nil {
		return nil, err
	}
	return client{found, c.logouts}, nil
}

// shortened changes the lifetime of access tokens in responses.
func shortened(next http.Handler, seconds int) http.Handler {
	return http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		if request.URL.Path != "/oauth/token" {
			next.ServeHTTP(writer, request)
			return
		}
		form, _ := io.ReadAll(request.Body)
		request.Body = io.NopCloser(bytes.NewReader(form))
		recorder := httptest.NewRecorder()
		next.ServeHTTP(recorder, request)
		body := recorder.Body.Bytes()
		var tokens map[string]any
		if recorder.Code == http.StatusOK && json.Unmarshal(body, &tokens) == nil {
			tokens["expires_in"] = seconds
			body, _ = json.Marshal(tokens)
		}
		values, _ := parse(form)
		fmt.Printf("token %s %d\n", values, recorder.Code)
		for name, value := range recorder.Header() {
			writer.Header()[name] = value
		}
		writer.Header().Del("Content-Length")
		writer.WriteHeader(recorder.Code)
		_, _ = writer.Write(body)
	})
}

// parse returns the grant of a form.
func parse(form []byte) (string, error) {
	request, err := http.NewRequest(http.MethodPost, "/", bytes.NewReader(form))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return request.PostFormValue("grant_type"), nil
}

func main() {
	port := flag.Int("port", 0, "port on loopback")
	seconds := flag.Int("seconds", 0, "lifetime of access tokens")
	callbacks := flag.String("callbacks", "", "redirect URIs of the client, with commas between them")
	logouts := flag.String("logouts", "", "post-logout redirect URIs of the client, with commas between them")
	flag.Parse()
	issuer := fmt.Sprintf("http://localhost:%d/", *port)
	storage.RegisterClients(storage.WebClient("web", "canary-of-the-client-web-0123456789", strings.Split(*callbacks, ",")...))
	users := storage.NewStorage(storage.NewUserStore(issuer))
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	router := exampleop.SetupServer(issuer, clients{users, strings.Split(*logouts, ",")}, logger, false)
	server := &http.Server{Addr: fmt.Sprintf("127.0.0.1:%d", *port), Handler: shortened(router, *seconds)}
	fmt.Println(server.ListenAndServe())
	os.Exit(1)
}
