package scrape

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// ErrNoListener says that no process that can be seen listens on the port.
var ErrNoListener = errors.New("no visible process listens there")

// listening is the state of a listening socket in /proc/net/tcp (include/net/tcp_states.h).
const listening = "0A"

// Listener finds the process that listens on a TCP port of this machine, by the socket's inode. Where several hold the socket
// (forked workers), it is the one whose parent doesn't; of several unrelated ones the lowest pid.
func (p Proc) Listener(port int) (int, error) {
	inodes := map[string]bool{}
	for _, file := range []string{"net/tcp", "net/tcp6"} {
		if err := p.listenInodes(file, port, inodes); err != nil && !errors.Is(err, os.ErrNotExist) {
			return 0, fmt.Errorf("looking for the server of port %d: %w", port, err)
		}
	}
	if len(inodes) == 0 {
		return 0, fmt.Errorf("port %d: %w", port, ErrNoListener)
	}
	var holders []int
	for _, pid := range p.pids() {
		if p.holds(pid, inodes) {
			holders = append(holders, pid)
		}
	}
	for _, pid := range holders {
		b, err := os.ReadFile(p.path(strconv.Itoa(pid), "stat"))
		if err != nil {
			continue
		}
		fields, err := statFields(b)
		if err != nil {
			continue
		}
		if parent := fields.number(4); !parent.OK || !slices.Contains(holders, int(parent.V)) {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("port %d is listened on, but its process can't be seen (another user's, or another container's): %w", port, ErrNoListener)
}

// listenInodes adds the inodes of the sockets that listen on port.
func (p Proc) listenInodes(file string, port int, inodes map[string]bool) error {
	f, err := os.Open(p.path(file))
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode …
		f := strings.Fields(lines.Text())
		if len(f) < 10 || f[3] != listening {
			continue
		}
		_, hex, ok := strings.Cut(f[1], ":")
		if n, err := strconv.ParseUint(hex, 16, 16); ok && err == nil && int(n) == port {
			inodes[f[9]] = true
		}
	}
	return lines.Err()
}

func (p Proc) holds(pid int, inodes map[string]bool) bool {
	dir, err := os.Open(p.path(strconv.Itoa(pid), "fd"))
	if err != nil {
		return false
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		target, err := os.Readlink(p.path(strconv.Itoa(pid), "fd", name))
		if err != nil {
			continue
		}
		if inode, ok := strings.CutPrefix(target, "socket:["); ok && inodes[strings.TrimSuffix(inode, "]")] {
			return true
		}
	}
	return false
}
