package loadgen

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// FaultKind names what is done to one attempt, and in which phase of it.
type FaultKind string

// The kinds of fault. All but the cancels are a proxy's work between client and server; the client cancels by itself.
const (
	ResetBeforeHeaders    FaultKind = "reset_before_headers"     // the connection is reset; the server never sees the request
	HTTP503               FaultKind = "http_503"                 // an answer of the proxy's; the server never sees the request
	HTTP429               FaultKind = "http_429"                 // the same, with Retry-After
	ResetAfterFirstToken  FaultKind = "reset_after_first_token"  // the connection is reset behind the first event with text
	ResetMidStream        FaultKind = "reset_mid_stream"         // the same, behind the event after it
	StallMidStream        FaultKind = "stall_mid_stream"         // nothing comes behind the first event with text, and the connection stays
	TruncatedMidStream    FaultKind = "truncated_mid_stream"     // the body ends there as if it were whole
	CancelBeforeHeaders   FaultKind = "cancel_before_headers"    // the client goes as soon as it has sent the request
	CancelAfterFirstToken FaultKind = "cancel_after_first_token" // the client goes at the first event with text
)

// FaultKinds lists the kinds in the order in which blocks of contexts take turns.
func FaultKinds() []FaultKind {
	return []FaultKind{ResetBeforeHeaders, HTTP503, HTTP429, ResetAfterFirstToken, ResetMidStream, StallMidStream, TruncatedMidStream,
		CancelBeforeHeaders, CancelAfterFirstToken}
}

// ByClient reports whether the client itself does it.
func (k FaultKind) ByClient() bool { return k == CancelBeforeHeaders || k == CancelAfterFirstToken }

// FaultPlan says which contexts meet a fault, one in each whole block of Block neighbours. It is a pure function of its fields, so
// that whoever knows them knows the plan.
type FaultPlan struct {
	Seed     string // any text
	Contexts int64
	Turns    int64
	Block    int64 // at least 1
}

// Fault is what one context meets: once, in one turn, at the first attempt of it that gets so far.
type Fault struct {
	Context, Turn int64
	Kind          FaultKind
}

// Len is the number of faults.
func (p FaultPlan) Len() int64 { return p.Contexts / p.Block }

// At is the fault of one block, blocks counting from 0 to Len.
func (p FaultPlan) At(block int64) Fault {
	kinds := FaultKinds()
	h := sha256.Sum256(fmt.Appendf(nil, "cotenant-faults-1\n%s\n%d", p.Seed, block))
	return Fault{
		Context: block*p.Block + int64(binary.BigEndian.Uint64(h[:8])%uint64(p.Block)),
		Turn:    int64(binary.BigEndian.Uint64(h[8:16]) % uint64(p.Turns)),
		Kind:    kinds[block%int64(len(kinds))],
	}
}

// Of is the fault that a turn of a context meets, if there is one.
func (p FaultPlan) Of(context, turn int64) (Fault, bool) {
	block := context / p.Block
	if context < 0 || block >= p.Len() {
		return Fault{}, false
	}
	f := p.At(block)
	return f, f.Context == context && f.Turn == turn
}
