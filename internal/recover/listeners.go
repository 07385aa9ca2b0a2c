package recover

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// maxListeners bounds how many ports are looked at.
const maxListeners = 16

// Listener is a TCP port that the process listens on.
type Listener struct {
	Address    string     `json:"address"` // as it is bound
	Port       int64      `json:"port"`
	Reason     string     `json:"reason"` // why it wasn't asked, empty if it may be
	Models     []string   `json:"models"` // ids, as it lists them
	Listing    Answer     `json:"listing"`
	Completion Answer     `json:"completion"`
	base       string     // URL of the loopback address to ask it at
	at         netip.Addr // Address
}

// Answer is how a request fared.
type Answer struct {
	State      string `json:"state"`       // Answers, Refuses, Hangs or Fails; empty: not asked
	HTTPStatus int64  `json:"http_status"` // 0: none came
	WallUS     int64  `json:"wall_us"`
	Detail     string `json:"detail"`
}

// States of an answer.
const (
	Answers = "answers"
	Refuses = "refuses" // an HTTP status other than 200
	Hangs   = "hangs"   // nothing within the time
	Fails   = "fails"   // a transport's error, or a body that isn't what was asked for
)

// listeners finds the ports by the sockets that the process holds. Ports in another network namespace are listed and not asked.
func (p proc) listeners() ([]Listener, error) {
	inodes, err := p.sockets()
	if err != nil {
		return nil, err
	}
	out := []Listener{}
	for _, table := range []string{"net/tcp", "net/tcp6"} {
		b, err := p.read(table)
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) { // no IPv6
				continue
			}
			return nil, classify(p.pid, err)
		}
		out = append(out, parseSockets(b, inodes)...)
	}
	slices.SortFunc(out, func(a, b Listener) int {
		if a.Port != b.Port {
			return int(a.Port - b.Port)
		}
		return strings.Compare(a.Address, b.Address)
	})
	out = out[:min(len(out), maxListeners)]
	own, err1 := os.Readlink("/proc/self/ns/net")
	other, err2 := os.Readlink(p.path("ns/net"))
	for i := range out {
		switch l := &out[i]; {
		case err1 != nil || err2 != nil || own != other:
			l.Reason = "it is in another network namespace"
		case l.at.IsUnspecified() && l.at.Is6(), l.at.IsUnspecified(), l.at.IsLoopback():
			host := "127.0.0.1"
			if l.at.IsLoopback() {
				host = l.at.String()
			}
			l.base = "http://" + netip.AddrPortFrom(netip.MustParseAddr(host), uint16(l.Port)).String()
		default:
			l.Reason = "it isn't bound to a loopback address"
		}
	}
	return out, nil
}

// sockets are the inodes of the process's sockets.
func (p proc) sockets() (map[string]bool, error) {
	dir, err := os.Open(p.path("fd"))
	if err != nil {
		return nil, classify(p.pid, err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, classify(p.pid, err)
	}
	out := map[string]bool{}
	for _, name := range names {
		target, err := os.Readlink(p.path("fd/" + name))
		if err != nil {
			continue // closed meanwhile
		}
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			out[strings.TrimSuffix(inode, "]")] = true
		}
	}
	return out, nil
}

// parseSockets reads /proc/PID/net/tcp or tcp6 and returns what listens (state 0A, include/net/tcp_states.h) on one of the inodes.
func parseSockets(b []byte, inodes map[string]bool) []Listener {
	var out []Listener
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		// sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode …
		f := strings.Fields(lines.Text())
		if len(f) < 10 || f[3] != "0A" || !inodes[f[9]] {
			continue
		}
		hex, portHex, ok := strings.Cut(f[1], ":")
		port, err := strconv.ParseUint(portHex, 16, 16)
		addr, err2 := parseAddress(hex)
		if !ok || err != nil || err2 != nil {
			continue
		}
		l := Listener{Address: addr.String(), Port: int64(port), Models: []string{}, at: addr}
		if !slices.ContainsFunc(out, func(o Listener) bool { return o.Address == l.Address && o.Port == l.Port }) {
			out = append(out, l)
		}
	}
	return out
}

// parseAddress reads an address as the kernel prints it: words of 32 bits in the machine's byte order.
func parseAddress(hex string) (netip.Addr, error) {
	if len(hex) != 8 && len(hex) != 32 {
		return netip.Addr{}, fmt.Errorf("address of %d digits", len(hex))
	}
	var b []byte
	for ; hex != ""; hex = hex[8:] {
		word, err := strconv.ParseUint(hex[:8], 16, 32)
		if err != nil {
			return netip.Addr{}, err
		}
		b = binary.NativeEndian.AppendUint32(b, uint32(word))
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr.Unmap(), nil
}
