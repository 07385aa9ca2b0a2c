package topology

import (
	"slices"
	"strings"
)

// Observed is one device that was seen: a GPU, or a MIG device with its GPU's name.
type Observed struct {
	UUID string
	Name string // product name
}

// Binding is the declared roles held against what was observed on one host.
type Binding struct {
	// Host is the declared host that this machine is: the one with the most observed UUIDs. Empty where no declared UUID was
	// observed, and where two hosts have the same number.
	Host string `json:"host"`
	// Reason says why Host is empty.
	Reason string `json:"reason,omitempty"`
	// Roles are the bound host's, or every host's where none could be bound, in the file's order.
	Roles []BoundRole `json:"roles"`
	// Unassigned are observed UUIDs that no role names, sorted.
	Unassigned []string `json:"unassigned"`
	// Foreign are roles of other hosts whose UUID was observed here: a card was moved, or the file is wrong.
	Foreign []BoundRole `json:"foreign"`
}

// BoundRole is one declared role and what became of it.
type BoundRole struct {
	Host string `json:"host"`
	Role string `json:"role"`
	UUID string `json:"uuid"`
	// State is bound, absent (no such UUID here) or mismatched (the UUID is here, the product name isn't the declared one).
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
}

// States of a role.
const (
	Bound      = "bound"
	Absent     = "absent"
	Mismatched = "mismatched"
)

// Bind holds the topology against what was observed. Identity is the UUID: the order of observed doesn't matter.
func (t *Topology) Bind(observed []Observed) Binding {
	names := make(map[string]string, len(observed))
	for _, o := range observed {
		names[o.UUID] = o.Name
	}
	b := Binding{Roles: []BoundRole{}, Unassigned: []string{}, Foreign: []BoundRole{}}
	most, tied := 0, false
	for _, h := range t.Hosts {
		seen := 0
		for _, r := range h.GPUs {
			if _, here := names[r.UUID]; here {
				seen++
			}
		}
		switch {
		case seen > most:
			b.Host, most, tied = h.Name, seen, false
		case seen == most && most > 0:
			tied = true
		}
	}
	switch {
	case tied:
		b.Host, b.Reason = "", "two declared hosts have equally many of their UUIDs here"
	case most == 0:
		b.Reason = "no declared UUID was observed here"
	}
	declared := make(map[string]bool)
	for _, h := range t.Hosts {
		for _, r := range h.GPUs {
			declared[r.UUID] = true
			bound := bind(h.Name, r, names)
			if b.Host == "" || b.Host == h.Name {
				b.Roles = append(b.Roles, bound)
			} else if bound.State != Absent {
				b.Foreign = append(b.Foreign, bound)
			}
		}
	}
	for uuid := range names {
		if !declared[uuid] {
			b.Unassigned = append(b.Unassigned, uuid)
		}
	}
	slices.Sort(b.Unassigned)
	return b
}

func bind(host string, r Role, names map[string]string) BoundRole {
	b := BoundRole{Host: host, Role: r.Name, UUID: r.UUID, State: Bound}
	name, here := names[r.UUID]
	switch {
	case !here:
		b.State, b.Reason = Absent, "no device with this UUID was observed"
	case r.Model != "" && !strings.Contains(strings.ToLower(name), strings.ToLower(r.Model)):
		b.State, b.Reason = Mismatched, "declared model "+r.Model+", observed "+name
	}
	return b
}
