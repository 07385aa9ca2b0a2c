// Command null is an endpoint that computes nothing: it answers the tasks of a generated soak by reading them, as fast as two ends of a
// connection can be, and counts what it did. The contract orchestration is soaked against it, so that what is left to measure is the
// client: retirement, accounting, memory, speed. It is a bench tool and a default of nothing.
//
// An answer is eight tokens in a stream of twelve events: a role, eight contents, a finish_reason, usage, [DONE]. It is written at once,
// or with --flush in one write an event. A token of a prompt is a word of its messages; the tokens that usage speaks of are those that the
// counters on /metrics count.
package main

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "null:", err)
		os.Exit(1)
	}
}

func run() error {
	listen := flag.String("listen", "127.0.0.1:18090", "address; port 0 takes a free one")
	flush := flag.Bool("flush", false, "one write an event, instead of one an answer")
	model := flag.String("model", "null", "model id")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-stop
		l.Close()
	}()
	fmt.Printf("http://%s\n", l.Addr())
	newServer(*model, *flush).serve(l)
	return nil
}
