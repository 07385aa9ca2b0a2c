package engine

// stopper finds stop strings in a text that comes in pieces, byte by byte (Knuth, Morris and Pratt, 1977): what it finds doesn't
// depend on how the text was cut, and a hostile stop string costs no more than any other.
type stopper struct {
	patterns []pattern
}

type pattern struct {
	text string
	fail []int32 // fail[k]: length of the longest proper start of text[:k] that is also its end
	at   int     // how much of text the newest bytes match
}

func newStopper(stops []string) stopper {
	var s stopper
	for _, stop := range stops {
		p := pattern{text: stop, fail: make([]int32, len(stop)+1)}
		for k := 1; k < len(stop); k++ {
			n := int(p.fail[k])
			for n > 0 && stop[n] != stop[k] {
				n = int(p.fail[n])
			}
			if stop[n] == stop[k] {
				n++
			}
			p.fail[k+1] = int32(n)
		}
		s.patterns = append(s.patterns, p)
	}
	return s
}

// feed takes the next text. Where a stop string ends in it, feed returns it, its length n, and the offset in text at which it
// ends; the one that ends first, and the longest of those. After that the stopper isn't used again.
func (s *stopper) feed(text string) (end, n int, stop string) {
	if len(s.patterns) == 0 {
		return 0, 0, ""
	}
	for i := range len(text) {
		for j := range s.patterns {
			p := &s.patterns[j]
			for p.at > 0 && p.text[p.at] != text[i] {
				p.at = int(p.fail[p.at])
			}
			if p.text[p.at] == text[i] {
				p.at++
			}
			if p.at == len(p.text) && len(p.text) > n {
				end, n, stop = i+1, len(p.text), p.text
			}
		}
		if n > 0 {
			return end, n, stop
		}
	}
	return 0, 0, ""
}

// held returns how many of the newest bytes may be the start of a stop string.
func (s *stopper) held() int {
	n := 0
	for i := range s.patterns {
		n = max(n, s.patterns[i].at)
	}
	return n
}
