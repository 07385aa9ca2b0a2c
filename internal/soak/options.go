package soak

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
)

// Options of a run. Fields without a comment on zero must be set.
type Options struct {
	Endpoint string // base URL, with or without /v1
	Model    string // empty: the one model that the endpoint lists
	APIKey   string // empty: none is sent
	Header   http.Header
	Contract string // empty: plain
	Turns    int64  // of a context; 0: 1, or 2 of the contract controlled

	Contexts    int64
	Workers     int64
	MaxAttempts int64 // per context; 0: 3
	Source      loadgen.Source
	Workload    WorkloadInfo

	MaxTokens   int64    // of an answer; 0: 8
	Temperature *float64 // nil: 0
	TopP        *float64 // nil: not sent
	Seed        *int64   // nil: not sent
	BodyJSON    []byte   // a JSON object whose members are sent too; empty: none

	Out    string // the run folder
	Resume bool   // go on with the run in Out

	Timeouts     Timeouts      // zero fields: 120 s, 60 s, 600 s; negative: none
	ReadyTimeout time.Duration // how long the endpoint may take to answer a first completion; 0: 120 s
	Grace        time.Duration // how long open attempts may take after an interrupt; 0: 10 s

	MetricsURL string        // empty: /metrics of the endpoint; "none": not read
	ServerPID  int           // 0: the process that listens on a loopback endpoint's port
	InProcess  bool          // the server runs in this process
	Period     time.Duration // between two samples; 0: 1 s
	GPU        GPUOptions    // whose GPUs samples show

	FaultBlock int64         // of the contract controlled: contexts of which one meets a fault; 0: 64
	QuietLimit time.Duration // of the contract controlled: how long the server's gauges may take to come back; 0: 10 s

	Load     *ledger.LoadPlan // nil: a closed loop; see LoadSpec. Of a trace the hash of its schedule is filled in, and the longest answer is MaxTokens
	Trace    *loadgen.Trace   // what Load replays: it is the Source, too
	Declared ledger.Declared  // what the user says that is measured

	Confirm        bool
	MaxSpendTokens int64 // 0: no limit

	Nonce        string         // a challenge of whoever will verify, which every prompt then begins with; empty: none
	Build        ledger.Build   // of this program
	RulesVersion int64          // of package verify
	Progress     func(Progress) // called a few times a second from one goroutine; nil: not
	Log          func(string)   // what a user should know, a line at a time; nil: dropped

	// Share makes this process one of several that make a run; nil: it makes it alone.
	Share Share

	// Dial replaces the network, for endpoints in this process. Nil dials.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// WorkloadInfo is what the ledger says of Source beside what Source says itself.
type WorkloadInfo struct {
	Seed       string     // decimal; empty where the work isn't generated
	BaseTokens ledger.Opt // intended
	Unique     bool       // no two contexts share a prompt
}

// UsageError says that a run was refused before any request, and why.
type UsageError struct{ Reason string }

func (e *UsageError) Error() string { return e.Reason }

func usage(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }

// Bounds of what is sent to addresses beyond this machine without a second thought.
const freeContexts = 1000

// fill sets defaults and checks everything that can be checked without a request.
func (o *Options) fill() error {
	for _, d := range []struct {
		v *time.Duration
		d time.Duration
	}{{&o.Timeouts.Headers, 120 * time.Second}, {&o.Timeouts.Idle, 60 * time.Second}, {&o.Timeouts.Total, 600 * time.Second},
		{&o.ReadyTimeout, 120 * time.Second}, {&o.Grace, 10 * time.Second}, {&o.Period, time.Second}} {
		if *d.v == 0 {
			*d.v = d.d
		}
		*d.v = max(*d.v, 0)
	}
	if o.Contract == "" {
		o.Contract = ledger.ContractPlain
	}
	if o.Turns == 0 {
		o.Turns = 1
		if o.Contract == ledger.ContractControlled {
			o.Turns = ledger.ControlledMinTurns
		}
	}
	if o.FaultBlock == 0 {
		o.FaultBlock = faultBlock
	}
	if o.QuietLimit == 0 {
		o.QuietLimit = 10 * time.Second
	}
	if o.MaxAttempts == 0 {
		o.MaxAttempts = 3
	}
	if o.MaxTokens == 0 {
		o.MaxTokens = 8
	}
	if o.Temperature == nil {
		o.Temperature = new(float64)
	}
	if o.Log == nil {
		o.Log = func(string) {}
	}
	switch {
	case !slices.Contains(ledger.Contracts(), o.Contract):
		return usage("contract %q isn't known; this version has %s", o.Contract, strings.Join(ledger.Contracts(), ", "))
	case o.Contexts < 1 || o.Contexts > ledger.MaxContexts:
		return usage("contexts %d: want 1 to %d", o.Contexts, ledger.MaxContexts)
	case o.Workers < 1 || o.Workers > ledger.MaxWorkers:
		return usage("workers %d: want 1 to %d", o.Workers, ledger.MaxWorkers)
	case o.MaxAttempts < 1 || o.MaxAttempts > 100:
		return usage("attempts %d: want 1 to 100", o.MaxAttempts)
	case o.MaxTokens < 1 || o.MaxTokens > 1<<24:
		return usage("max-tokens %d: want 1 to %d", o.MaxTokens, 1<<24)
	case o.MaxSpendTokens < 0:
		return usage("max-spend-tokens %d: want at least 1", o.MaxSpendTokens)
	case o.Period < 10*time.Millisecond || o.Period > time.Second:
		return usage("sample period %v: want 10ms to 1s", o.Period)
	case o.Source == nil:
		return usage("no workload")
	case o.Out == "" && o.member() == nil:
		return usage("no run folder: say --out")
	case !utf8.ValidString(o.Model):
		return usage("model %q isn't valid UTF-8", o.Model)
	case o.ServerPID < 0:
		return usage("server-pid %d isn't a process", o.ServerPID)
	}
	if u, err := url.Parse(o.MetricsURL); o.MetricsURL != "" && o.MetricsURL != "none" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return usage("metrics-url %q isn't an http or https URL", o.MetricsURL)
	}
	if err := o.checkShare(); err != nil {
		return err
	}
	if err := o.GPU.check(); err != nil {
		return err
	}
	if len(o.Nonce) > ledger.MaxNonce || strings.ContainsFunc(o.Nonce, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return usage("nonce: want at most %d characters of ASCII without white space", ledger.MaxNonce)
	}
	o.Source = loadgen.Challenged(o.Source, o.Nonce)
	if !fraction(*o.Temperature, 0, 100) {
		return usage("temperature %v: want 0 to 100, and six decimals at most", *o.Temperature)
	}
	if o.TopP != nil && !fraction(*o.TopP, 0, 1) {
		return usage("top-p %v: want 0 to 1, and six decimals at most", *o.TopP)
	}
	if err := o.checkContract(); err != nil {
		return err
	}
	if err := o.checkLoad(); err != nil {
		return err
	}
	return o.checkHeader()
}

// checkContract checks what the contract asks of the other options.
func (o *Options) checkContract() error {
	if o.Contract != ledger.ContractControlled {
		switch {
		case o.Turns != 1:
			return usage("turns %d: the contract %s has one turn; --contract %s has several", o.Turns, o.Contract, ledger.ContractControlled)
		case o.Contract == ledger.ContractOrchestration && !o.Source.Task(0).HasOracle:
			return usage("the contract %s needs tasks whose answers an oracle knows", o.Contract)
		}
		return nil
	}
	work, ok := o.Source.(loadgen.Conversations)
	switch {
	case !ok:
		return usage("the contract %s needs generated tasks: prompts from a file have no base whose loss a canary could notice", o.Contract)
	case work.Base() == "":
		return usage("the contract %s needs a base that all contexts share", o.Contract)
	case o.Turns < ledger.ControlledMinTurns || o.Turns > ledger.MaxTurns:
		return usage("turns %d: the contract %s has %d to %d", o.Turns, o.Contract, ledger.ControlledMinTurns, ledger.MaxTurns)
	case o.MaxAttempts > ledger.ControlledMaxAttempts:
		return usage("attempts %d: the contract %s allows %d", o.MaxAttempts, o.Contract, ledger.ControlledMaxAttempts)
	case o.FaultBlock < 1 || o.FaultBlock > ledger.ControlledMaxBlock:
		return usage("one fault in %d contexts: want 1 to %d", o.FaultBlock, ledger.ControlledMaxBlock)
	}
	return nil
}

// fraction reports whether v lies within bounds and has at most six decimals: the config holds millionths, from which a verifier makes the
// request again.
func fraction(v, lo, hi float64) bool {
	return !math.IsNaN(v) && v >= lo && v <= hi && math.Round(v*1e6)/1e6 == v
}

// ownHeaders are set by the client itself.
var ownHeaders = []string{"Content-Type", "Content-Length", "Transfer-Encoding", "Accept", "Accept-Encoding", "Connection", "Host", "Expect", "Upgrade", "Te"}

func (o *Options) checkHeader() error {
	for name, values := range o.Header {
		canonical := http.CanonicalHeaderKey(name)
		if slices.Contains(ownHeaders, canonical) {
			return usage("header %s is set by the client itself", canonical)
		}
		if canonical == "Authorization" && o.APIKey != "" {
			return usage("header Authorization and an API key are given; want one of them")
		}
		if name == "" || strings.ContainsFunc(name, notToken) {
			return usage("header name %q isn't valid", name)
		}
		for _, v := range values {
			if strings.ContainsAny(v, "\r\n\x00") {
				return usage("the value of header %s holds a line break", canonical)
			}
		}
	}
	if strings.ContainsAny(o.APIKey, "\r\n\x00 ") {
		return usage("the API key holds white space")
	}
	return nil
}

// notToken reports a character that isn't in a token of RFC 9110, 5.6.2.
func notToken(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
}

// target is an endpoint's addresses.
type target struct {
	root  *url.URL // without /v1
	api   string   // …/v1
	chat  string
	scope string
}

// parseEndpoint reads a base URL, with or without /v1, or the full address of chat completions.
func parseEndpoint(s string) (target, error) {
	u, err := url.Parse(s)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return target{}, usage("endpoint %q isn't an http or https URL, for instance http://127.0.0.1:8080", s)
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return target{}, usage("endpoint %q has a query or a fragment; want a base URL", s)
	}
	if u.User != nil {
		return target{}, usage("the endpoint holds a name or a password, which would be written into the run's config; send them by --header 'Authorization: Basic …'")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return target{}, usage("endpoint %q: port %s isn't one of 1 to 65535", s, port)
		}
	}
	path := strings.TrimRight(u.Path, "/")
	path = strings.TrimSuffix(path, "/chat/completions")
	u.RawPath = ""
	u.Path = path
	api := *u
	if !strings.HasSuffix(path, "/v1") {
		api.Path = path + "/v1"
	}
	u.Path = strings.TrimSuffix(path, "/v1")
	chat := api
	chat.Path += "/chat/completions"
	return target{root: u, api: api.String(), chat: chat.String()}, nil
}

// scopeOf says how far an endpoint's address is. A host that can't be looked up counts as public: the request says what is wrong
// with it.
func scopeOf(ctx context.Context, u *url.URL) string {
	host := u.Hostname()
	if strings.EqualFold(host, "localhost") {
		return ledger.ScopeLoopback
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return scopeOfIP(ip)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil || len(ips) == 0 {
		return ledger.ScopePublic
	}
	scope := ledger.ScopeLoopback
	order := []string{ledger.ScopeLoopback, ledger.ScopePrivate, ledger.ScopePublic}
	for _, ip := range ips {
		if s := scopeOfIP(ip); slices.Index(order, s) > slices.Index(order, scope) {
			scope = s
		}
	}
	return scope
}

func scopeOfIP(ip netip.Addr) string {
	ip = ip.Unmap()
	switch {
	case ip.IsLoopback():
		return ledger.ScopeLoopback
	case ip.IsPrivate(), ip.IsLinkLocalUnicast():
		return ledger.ScopePrivate
	}
	return ledger.ScopePublic
}

// guard refuses a large run against a machine that isn't this one unless it is wanted and bounded.
func (o *Options) guard(scope string) error {
	if o.Contexts <= freeContexts || scope == ledger.ScopeLoopback {
		return nil
	}
	if !o.Confirm || o.MaxSpendTokens == 0 {
		return usage("%d contexts against an address that isn't loopback need --confirm and --max-spend-tokens", o.Contexts)
	}
	return nil
}

var errNotRun = errors.New("the endpoint answered no completion")

// NotReadyError says that the endpoint never answered a completion, so that nothing was measured.
type NotReadyError struct {
	Reason string
	Hint   string // may be empty
}

func (e *NotReadyError) Error() string {
	if e.Hint == "" {
		return errNotRun.Error() + ": " + e.Reason
	}
	return errNotRun.Error() + ": " + e.Reason + " (" + e.Hint + ")"
}

func (e *NotReadyError) Unwrap() error { return errNotRun }

// sameHost reports whether a URL's host and port are host.
func sameHost(raw, host string) bool {
	u, err := url.Parse(raw)
	return err == nil && u.Host == host
}
