package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"html/template"
	"maps"
	"slices"
	"strconv"
	"strings"

	"cotenant/internal/ledger"
)

// view gives a template the values of documents, by place alone: a template holds no number and can be handed none.
type view struct {
	docs    documents
	figures map[string]figure
	prefix  string // of places, as the page that a chart is drawn for has them; empty where that has one run
}

// figure is a chart with its words. A figure that can't be drawn has a reason instead.
type figure struct {
	ID, Title string
	Place     string        // of the title's text, where it is a document's
	Lead      string        // what is seen, in a sentence
	SVG       template.HTML // empty: see Reason
	Reason    template.HTML
}

func (v *view) funcs() template.FuncMap {
	return template.FuncMap{
		"n": v.number, "t": v.text, "bound": v.bound, "q": v.quantile, "items": v.items, "is": v.is, "has": v.has, "raw": v.raw,
		"figure": v.figure, "claim": v.claim, "claims": v.claims, "why": whyText, "outcome": outcomeText, "share": v.share, "concat": concat, "list": list, "outcomeclass": outcomeClass, "seriesunit": seriesUnit,
		"limitstimes": limitsTimes, "rateunit": rateUnit, "meter": v.meter, "verdict": verdictText, "result": resultText, "within": v.within, "mechanismwords": mechanismText, "workloadwords": workloadText, "definitions": v.definitions,
	}
}

// number shows the value at place in unit; none is what it says for null.
func (v *view) number(place, unit string, none ...string) (template.HTML, error) {
	return v.show("span", place, unit, none...)
}

// text shows the text at place, which can't become markup and can't change the direction of what surrounds it.
func (v *view) text(place string) (template.HTML, error) { return v.show("bdi", place, unitText) }

// show writes an element that check can read back.
func (v *view) show(element, place, unit string, none ...string) (template.HTML, error) {
	value, err := v.docs.get(place)
	if err != nil {
		return "", err
	}
	lit, err := literal(value)
	if err != nil {
		return "", fmt.Errorf("%s: %w", place, err)
	}
	class, words, title := "n", "", ""
	switch {
	case value == nil && len(none) > 0:
		class, words = "none", none[0]
	case value == nil:
		class, words = "none", absent[0]
	default:
		if words, err = write(value, unit); err != nil {
			return "", fmt.Errorf("%s: %w", place, err)
		}
	}
	if unit == unitText || unit == unitTruth {
		class = unit
	} else if unit == unitHash {
		class = "hash"
	}
	if number, ok := value.(json.Number); ok && element != "tspan" {
		if n, err := number.Int64(); err == nil && exact(n, unit) != "" {
			title = ` title="` + exact(n, unit) + `"`
		}
	}
	return template.HTML(fmt.Sprintf(`<%s class="%s" data-at="%s" data-u="%s" data-v="%s"%s>%s</%s>`, element, class, html.EscapeString(v.prefix+place), unit,
		html.EscapeString(lit), title, html.EscapeString(words), element)), nil
}

// label is text for a chart: words, then the value at place.
func (v *view) label(words, place, unit string) template.HTML {
	shown, err := v.show("tspan", place, unit)
	if err != nil {
		return template.HTML(html.EscapeString(words))
	}
	if words == "" {
		return shown
	}
	return template.HTML(html.EscapeString(words)+" ") + shown
}

// bound shows the upper bound of the quantile at place, by its evidence.
func (v *view) bound(place string) (template.HTML, error) {
	evidence, err := v.raw(place + "/evidence")
	if err != nil {
		return "", err
	}
	switch evidence {
	case ledger.EvidenceBound, ledger.EvidenceMaximum:
		shown, err := v.number(place+"/upper_us", unitUSUp)
		return "≤ " + shown, err
	case ledger.EvidenceInfinite:
		if known, err := v.has(place + "/value_us"); !known {
			return "", err // the value says it
		}
		return v.number(place+"/upper_us", unitUSUp, "a failure")
	case ledger.EvidenceSample:
		return "no bound", nil
	}
	return "", nil
}

// quantile shows the value of the quantile at place.
func (v *view) quantile(place string) (template.HTML, error) {
	evidence, err := v.raw(place + "/evidence")
	if err != nil {
		return "", err
	}
	none := "–"
	if evidence == ledger.EvidenceInfinite {
		none = "a failure"
	}
	return v.number(place+"/value_us", unitUS, none)
}

// items lists the places of an array's members.
func (v *view) items(place string) ([]string, error) {
	value, err := v.docs.get(place)
	if err != nil {
		return nil, err
	}
	array, ok := value.([]any)
	if !ok {
		return nil, fmt.Errorf("%s is no array", place)
	}
	places := make([]string, len(array))
	for i := range array {
		places[i] = place + "/" + strconv.Itoa(i)
	}
	return places, nil
}

// is reports whether the text or number at place is want.
func (v *view) is(place, want string) (bool, error) {
	value, err := v.docs.get(place)
	if err != nil {
		return false, err
	}
	lit, err := literal(value)
	return lit == want, err
}

// has reports whether there is something at place: no null, empty text, empty array, 0 or false.
func (v *view) has(place string) (bool, error) {
	value, err := v.docs.get(place)
	switch value := value.(type) {
	case nil:
		return false, err
	case string:
		return value != "", err
	case []any:
		return len(value) > 0, err
	case bool:
		return value, err
	case json.Number:
		return value != "0", err
	}
	return true, err
}

// raw is a text to decide by, not to show.
func (v *view) raw(place string) (string, error) {
	value, err := v.docs.get(place)
	if err != nil {
		return "", err
	}
	s, ok := value.(string)
	if !ok {
		return "", fmt.Errorf("%s isn't text", place)
	}
	return s, nil
}

func (v *view) whole(place string) (int64, error) {
	value, err := v.docs.get(place)
	if err != nil {
		return 0, err
	}
	number, ok := value.(json.Number)
	if !ok {
		return 0, fmt.Errorf("%s isn't a number", place)
	}
	return number.Int64()
}

// share is a bar as long as part is of whole, for the eye alone.
func (v *view) share(part, whole, class string) (template.HTML, error) {
	a, err := v.whole(part)
	if err != nil {
		return "", err
	}
	b, err := v.whole(whole)
	if err != nil || b <= 0 {
		return "", err
	}
	return bar(float64(a)/float64(b)*100, class), nil
}

// meter is a bar as long as a value in parts per million, for the eye alone.
func (v *view) meter(place, class string) (template.HTML, error) {
	ppm, err := v.whole(place)
	return bar(float64(ppm)/1e4, class), err
}

func bar(percent float64, class string) template.HTML {
	return template.HTML(fmt.Sprintf(`<svg class="share %s" width="100%%" height="8" aria-hidden="true"><rect class="track" width="100%%" height="8" rx="4"/>`+
		`<rect width="%.2f%%" height="8" rx="4"/></svg>`, html.EscapeString(class), min(max(percent, 0), 100)))
}

// within reports whether the slowdown whose ratio stands at place is no more than noise.
func (v *view) within(place string) (bool, error) {
	claim, err := v.raw(strings.TrimSuffix(place, "/ratio_ppm") + "/claim")
	return claim == "within_noise", err
}

func (v *view) figure(name string) (figure, error) {
	f, ok := v.figures[name]
	if !ok {
		return f, fmt.Errorf("no figure %q", name)
	}
	return f, nil
}

// claim shows a claim's value with its unit.
func (v *view) claim(place string) (template.HTML, error) {
	unit, err := v.raw(place + "/unit")
	if err != nil {
		return "", err
	}
	switch unit {
	case "us":
		if id, err := v.raw(place + "/id"); err != nil || strings.HasSuffix(id, "_upper") {
			return v.number(place+"/value", unitUSUp)
		}
		return v.number(place+"/value", unitUS)
	case "bytes":
		return v.number(place+"/value", unitBytes)
	case "ppm":
		return v.number(place+"/value", unitPPM)
	case "mW":
		return v.number(place+"/value", unitMW)
	case "mJ":
		return v.number(place+"/value", unitMJ)
	case "per 10^6 s":
		shown, err := v.number(place+"/value", unitPerE6)
		return shown + ` <span class="unit">/s</span>`, err
	}
	shown, err := v.number(place+"/value", unitCount)
	if err != nil {
		return "", err
	}
	word, err := v.text(place + "/unit")
	return shown + ` <span class="unit">` + word + `</span>`, err
}

func concat(parts ...string) string {
	all := ""
	for _, p := range parts {
		all += p
	}
	return all
}

func list(items ...string) []string { return items }

// outcomeClass is the colour of an outcome's bar.
func outcomeClass(outcome string) string {
	if ledger.Outcome(outcome) == ledger.OK {
		return "s3"
	}
	return "s2"
}

// seriesUnit is the unit that a canonical name of a series ends in.
func seriesUnit(name string) string {
	if name == ledger.SeriesServerStart {
		return unitWall
	}
	for _, u := range []string{unitUS, unitBytes, unitPPM} {
		if strings.HasSuffix(name, "_"+u) {
			return u
		}
	}
	return unitCount
}

// claims reports whether the ledger claims what id names.
func (v *view) claims(id string) (bool, error) {
	list, err := v.items("/claims")
	if err != nil {
		return false, err
	}
	for _, at := range list {
		if is, err := v.is(at+"/id", id); is || err != nil {
			return is, err
		}
	}
	return false, nil
}

// limitsTimes reports whether a non-claim speaks of the times and rates that a page shows first.
func limitsTimes(id string) bool {
	return slices.Contains([]string{ledger.ClaimTTFT, "server", "server_times_and_rates", "server_times_apart"}, id)
}

// definitions are the names of the ledger's definitions, in order.
func (v *view) definitions() ([]string, error) {
	value, err := v.docs.get("/definitions")
	if err != nil {
		return nil, err
	}
	members, ok := value.(map[string]any)
	if !ok {
		return nil, errors.New("definitions are no object")
	}
	return slices.Sorted(maps.Keys(members)), nil
}
