package server

import (
	"context"
	"flag"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"
)

// serveAddr lets people run the client suites of clients/ against the scripted generator:
//
//	go test ./internal/server -run TestServeForClients -timeout 1h -serve 127.0.0.1:18080
var serveAddr = flag.String("serve", "", "address on which TestServeForClients serves until it is interrupted")

// TestServeForClients serves through real listeners as the command does, until SIGINT where -serve is given, else for one request.
func TestServeForClients(t *testing.T) {
	addr := *serveAddr
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	s, err := New(Config{Generators: []Generator{newScripted()}, Version: "test", APIKey: os.Getenv("COTENANT_API_KEY")})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	srv := s.HTTPServer(s.Handler())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	if status, _, body := get(t, "http://"+l.Addr().String()+"/health"); status != http.StatusOK {
		t.Errorf("health: %d %s", status, body)
	}
	if *serveAddr != "" {
		ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
		<-ctx.Done()
		stop()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.Drain(ctx); err != nil {
		t.Error(err)
	}
	if err := srv.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if err := <-served; err != http.ErrServerClosed {
		t.Error(err)
	}
}
