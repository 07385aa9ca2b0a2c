package chat

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// hostile are templates that must end in an error: quickly, in little memory, and with the program alive.
var hostile = map[string]string{
	"endless loop":         `{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}`,
	"three million":        `{% for i in range(100000) %}{% for j in range(30) %}{% set x = i * j %}{{ '' }}{% endfor %}{% endfor %}{% for i in range(100000) %}{% for j in range(10000) %}{% endfor %}{% endfor %}`,
	"exponential output":   `{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}`,
	"exponential concat":   `{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s ~ ns.s %}{% endfor %}`,
	"exponential list":     `{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}`,
	"exponential nesting":  `{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}`,
	"exponential JSON":     `{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s | tojson }}`,
	"exponential equality": `{% set a = namespace(s=[1]) %}{% set b = namespace(s=[1]) %}{% for i in range(60) %}{% set a.s = [a.s, a.s] %}{% set b.s = [b.s, b.s] %}{% endfor %}{{ a.s == b.s }}`,
	"exponential order":    `{% set a = namespace(s=[1]) %}{% set b = namespace(s=[1]) %}{% for i in range(60) %}{% set a.s = [a.s, a.s] %}{% set b.s = [b.s, b.s] %}{% endfor %}{{ a.s < b.s }}`,
	"deep list":            `{% set ns = namespace(s=[]) %}{% for i in range(50000) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}`,
	"long output":          `{% for i in range(100000) %}{{ messages }}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}`,
	"recursion":            `{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}`,
	"mutual recursion":     `{% macro f(x) %}{{ g(x) }}{% endmacro %}{% macro g(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}`,
	"recursion by filter":  `{% macro f(x) %}{{ [1] | map('string') | join ~ f(x) }}{% endmacro %}{{ f(1) }}`,
	"recursion by default": `{% macro f(x=f()) %}{% endmacro %}{{ f() }}`,
	"recursion by caller":  `{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}`,
	"map of map":           `{{ [[1]] | map('map', 'map', 'map') | list }}`,
	"repeat":               `{{ 'x' * 3000000000 }}`,
	"repeat most":          `{{ 'x' * 9223372036854775807 }}`,
	"repeat list":          `{{ [1, 2] * 9223372036854775807 }}`,
	"repeat trusted":       `{{ ('x' ~ messages[0].content) * 100000000 }}`,
	"range":                `{% for i in range(3000000000) %}{% endfor %}`,
	"range least":          `{{ range(-9223372036854775807, 9223372036854775807, 1) | length }}`,
	"indent":               `{{ 'a\nb' | indent(2000000000) }}`,
	"indent many":          `{{ ('a\n' * 100000) | indent(100000) }}`,
	"replace":              `{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}`,
	"replace empty":        `{{ ('a' * 1000000) | replace('', 'b' * 1000000) }}`,
	"join":                 `{{ range(100000) | join('b' * 1000000) }}`,
	"tojson indent":        `{{ [[[[[1]]]]] | tojson(indent='x' * 10000000) }}`,
	"tojson separators":    `{{ range(100000) | list | tojson(separators=('x' * 100000, ':')) }}`,
	"batch":                `{{ [1] | batch(2000000000, 'x') | list }}`,
	"format":               `{{ ('%s' * 1000000) }}{{ ('%s%s%s%s' % ('a' * 4000000, 'a' * 4000000, 'a' * 4000000, 'a' * 4000000)) | length }}{{ '%s' % 1 % 2 }}`,
	"str.format":           `{{ ('{0}' * 100000).format('x' * 100000) }}`,
	"power":                `{{ 10 ** 1000000000 }}`,
	"many words":           `{{ ('a ' * 4000000).split() | length }}{{ ('a ' * 4000000).split() | length }}`,
	"characters":           `{{ ('a' * 100000000) | list | length }}`,
	"sort":                 `{{ (range(100000) | list + range(100000) | list) * 50 | sort | length }}`,
	"macro output":         `{% macro f(n) %}xxxxxxxxxx{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}`,
	"macro silent":         `{% macro f(n) %}{% if n %}{% set q = f(n - 1) %}{% set q = f(n - 1) %}{% endif %}{% endmacro %}{{ f(90) }}`,
	"globals":              `{{ cycler.__init__.__globals__.os.popen('id').read() }}`,
	"joiner":               `{{ joiner.__init__.__globals__ }}`,
	"namespace":            `{{ namespace.__init__.__globals__ }}`,
	"function":             `{{ raise_exception.__globals__['os'] }}`,
	"method":               `{{ ''.join.__self__.__class__ }}`,
	"subclasses":           `{{ ().__class__.__base__.__subclasses__() }}`,
	"string class":         `{{ messages.__class__.__mro__[1].__subclasses__() }}`,
	"attribute by name":    `{{ messages['__class__']['__mro__'] }}`,
	"map by attribute":     `{{ [messages] | map(attribute='__class__.__mro__') | list | first | length }}`,
	"format attribute":     `{{ '{0.__class__}'.format(messages) }}`,
	"mutation":             `{{ messages.append(1) }}`,
	"dict mutation":        `{{ messages[0].update({'content': 'x'}) }}`,
	"set attribute":        `{% set messages.x = 1 %}`,
}

func TestHostileTemplates(t *testing.T) {
	for name, src := range hostile {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tmpl, err := New(src, Options{Timeout: 300 * time.Millisecond})
			if err != nil {
				t.Fatalf("it should fail when it is rendered: %v", err)
			}
			start := time.Now()
			out, err := tmpl.Render([]Message{{Role: "user", Content: "hello"}}, RenderOptions{})
			var te *TemplateError
			if !errors.As(err, &te) {
				t.Fatalf("no error but %.100q", join(out))
			}
			// The machine may be busy; without the deadline these would take minutes to ages.
			if d := time.Since(start); d > time.Minute {
				t.Errorf("it took %v", d)
			}
		})
	}
}

// TestHostileMemory bounds what one rendering allocates, all in all.
func TestHostileMemory(t *testing.T) {
	for name, src := range hostile {
		tmpl, err := New(src, Options{MaxBytes: 1 << 20, Timeout: 200 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = tmpl.Render([]Message{{Role: "user", Content: "hello"}}, RenderOptions{})
		runtime.ReadMemStats(&after)
		// What is counted is at most 32 MiB; builders that grow and values' own overhead multiply it.
		if mb := (after.TotalAlloc - before.TotalAlloc) >> 20; mb > 400 {
			t.Errorf("%s: %d MiB allocated", name, mb)
		}
	}
}

// TestFilesAreOutOfReach: every way by which Jinja loads something is refused when the template is parsed.
func TestFilesAreOutOfReach(t *testing.T) {
	if _, err := os.Stat("/etc/passwd"); err != nil {
		t.Logf("no /etc/passwd here; the refusal doesn't depend on it")
	}
	for _, src := range []string{
		`{% include "/etc/passwd" %}`, `{% include ["/etc/passwd"] ignore missing %}`, `{% extends "/etc/passwd" %}`, `{% import "/etc/passwd" as x %}`,
		`{% from "/etc/passwd" import x %}`, `{% block x %}{% endblock %}`, `{% autoescape true %}{% endautoescape %}`, `{% trans %}x{% endtrans %}`, `{% do x %}`,
	} {
		if _, err := New(src, Options{}); err == nil || !strings.Contains(err.Error(), "isn't supported") {
			t.Errorf("%s: %v", src, err)
		}
	}
}

// TestHugeSources must end in an error or a template, not in an exhausted stack.
func TestHugeSources(t *testing.T) {
	n := 200_000
	for name, src := range map[string]string{
		"parentheses":  "{{ " + strings.Repeat("(", n) + "1" + strings.Repeat(")", n) + " }}",
		"brackets":     "{{ " + strings.Repeat("[", n) + strings.Repeat("]", n) + " }}",
		"braces":       "{{ " + strings.Repeat("{1:", n),
		"subscripts":   "{{ a" + strings.Repeat("[a", n) + strings.Repeat("]", n) + " }}",
		"calls":        "{{ a" + strings.Repeat("(a", n),
		"minuses":      "{{ " + strings.Repeat("-", n) + "1 }}",
		"nots":         "{{ " + strings.Repeat("not ", n) + "1 }}",
		"sums":         "{{ 1" + strings.Repeat("+1", n) + " }}",
		"products":     "{{ 1" + strings.Repeat("*1", n) + " }}",
		"powers":       "{{ 1" + strings.Repeat("**1", n) + " }}",
		"concats":      "{{ 1" + strings.Repeat("~1", n) + " }}",
		"ands":         "{{ 1" + strings.Repeat(" and 1", n/2) + " }}",
		"comparisons":  "{{ 1" + strings.Repeat("<1", n) + " }}",
		"conditions":   "{{ 1" + strings.Repeat(" if 1 else 1", n/4) + " }}",
		"attributes":   "{{ a" + strings.Repeat(".a", n) + " }}",
		"filters":      "{{ a" + strings.Repeat("|e", n) + " }}",
		"tests":        "{{ a" + strings.Repeat(" is odd", n/2) + " }}",
		"blocks":       strings.Repeat("{% if 1 %}", n/4),
		"elifs":        "{% if 0 %}" + strings.Repeat("{% elif 0 %}", n/4) + "{% endif %}",
		"targets":      "{% for " + strings.Repeat("(", n),
		"strings":      "{{ " + strings.Repeat("'a'", n) + " }}",
		"comments":     strings.Repeat("{##}", n),
		"raws":         strings.Repeat("{% raw %}", n/4),
		"unclosed raw": "{% raw %}" + strings.Repeat("{% endraw ", n/4),
		"braces open":  strings.Repeat("{", 4*n),
		"too large":    strings.Repeat("x", maxTemplate+1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tmpl, err := New(src, Options{})
			if err == nil {
				_, _ = tmpl.Render([]Message{{Role: "user", Content: "x"}}, RenderOptions{})
			}
		})
	}
}

// TestStoppingIsReal: after the deadline nothing of a rendering goes on.
func TestStoppingIsReal(t *testing.T) {
	tmpl, err := New(hostile["endless loop"], Options{Timeout: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	for range 20 {
		if _, err := tmpl.Render(nil, RenderOptions{}); err == nil || !strings.Contains(err.Error(), "longer than 20ms") {
			t.Fatalf("error %v", err)
		}
	}
	// A timer's own goroutine may be about to end.
	for until := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%d goroutines before, %d after", before, runtime.NumGoroutine())
		}
	}
}
