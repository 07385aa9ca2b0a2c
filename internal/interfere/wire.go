package interfere

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"cotenant/internal/interfere/record"
)

// Orders that a worker takes, one after the other, over a socket in the session's private folder; each gets one reply. Both are JSON,
// one a line.
const (
	doPrepare  = "prepare"  // open the device, make everything; reply: facts
	doCheck    = "check"    // compare outputs with references; reply: checks
	doOverhead = "overhead" // an empty kernel again and again; reply: series
	doAggress  = "aggress"  // start feeding; reply once the first unit has ended
	doMark     = "mark"     // reply: units ended so far, and when
	doVictim   = "victim"   // launch again and again; reply: series
	doStop     = "stop"     // stop feeding and wait for what is submitted
	doQuit     = "quit"     // end the process
)

type order struct {
	Do        string `json:"do"`
	Workload  string `json:"workload,omitempty"`
	Mechanism string `json:"mechanism,omitempty"`
	// Ahead is an aggressor, one unit of which is put in front of each of the victim's launches: sequential.
	Ahead string `json:"ahead,omitempty"`
}

type reply struct {
	Error  string         `json:"error,omitempty"`
	Facts  *facts         `json:"facts,omitempty"`
	Checks []record.Check `json:"checks,omitempty"`
	Host   record.Series  `json:"host,omitempty"`
	Event  record.Series  `json:"event,omitempty"`
	Submit record.Series  `json:"submit,omitempty"`
	Units  int64          `json:"units,omitempty"`
	AtUS   int64          `json:"at_us,omitempty"` // of the worker's own clock
}

// facts are what a worker has made.
type facts struct {
	SMs        int64           `json:"sms"` // that it may use
	Capability int64           `json:"capability"`
	Priority   [2]int64        `json:"priority"`
	Modules    []record.Module `json:"modules"`
	Made       []record.Made   `json:"made"` // Green Contexts
	FreeBytes  uint64          `json:"free_bytes"`
}

const maxMessage = 32 << 20

// peer is a worker as the supervisor sees it.
type peer struct {
	name  string
	conn  net.Conn
	lines *bufio.Scanner
	gone  chan string // why the process ended
}

// ask gives an order and waits for its reply.
func (p *peer) ask(o order, limit time.Duration) (reply, error) {
	var r reply
	line, err := json.Marshal(o)
	if err == nil {
		_ = p.conn.SetDeadline(time.Now().Add(limit))
		_, err = p.conn.Write(append(line, '\n'))
	}
	if err == nil {
		if !p.lines.Scan() {
			err = p.lines.Err()
			if err == nil {
				err = io.EOF
			}
		} else {
			err = json.Unmarshal(p.lines.Bytes(), &r)
		}
	}
	if err != nil {
		select {
		case why := <-p.gone:
			p.gone <- why
			return r, fmt.Errorf("worker %s ended while it was told to %s: %s", p.name, o.Do, why)
		case <-time.After(2 * time.Second):
		}
		return r, fmt.Errorf("telling worker %s to %s: %w", p.name, o.Do, err)
	}
	if r.Error != "" {
		return r, fmt.Errorf("worker %s, %s %s %s: %w", p.name, o.Do, o.Workload, o.Mechanism, errors.New(r.Error))
	}
	return r, nil
}

// socketName is where a worker finds its supervisor.
func socketName(private, name string) string { return filepath.Join(private, "s-"+name) }

// listen makes a worker's socket before it is started.
func listen(private, name string) (*net.UnixListener, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socketName(private, name), Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("making a worker's socket: %w", err)
	}
	return l, os.Chmod(socketName(private, name), 0o600)
}

func scanner(c io.Reader) *bufio.Scanner {
	s := bufio.NewScanner(c)
	s.Buffer(make([]byte, 64<<10), maxMessage)
	return s
}
