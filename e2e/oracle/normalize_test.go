package oracle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// compared are the headers whose values are compared.
var compared = []string{
	"Cache-Control", "Content-Encoding", "Content-Type", "Location", "Retry-After", "Vary",
	"Warning", "Www-Authenticate", "X-Content-Type-Options", "Strict-Transport-Security",
}

// present are the headers that both answers or neither must have, with any value.
var present = []string{
	"Audit-Id", "Date", "Etag", "Last-Modified", "X-Kubernetes-Pf-Flowschema-Uid", "X-Kubernetes-Pf-Prioritylevel-Uid",
}

// changing are the parts of a text that differ between servers and between runs.
var changing = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`https://127\.0\.0\.1:\d+|127\.0\.0\.1:\d+`), "SERVER"},
	{regexp.MustCompile(`\b10\.96\.(0\.(\d\d+|[02-9])|[1-9]\d*\.\d+)\b`), "ADDRESS"},
	{regexp.MustCompile(`\b3[012]\d{3}/`), "NODEPORT/"},
	{regexp.MustCompile(`resourceVersion(\\?)":(\\?)"\d+`), `resourceVersion$1":$2"REVISION`},
	{regexp.MustCompile(`in record \(\d+\)`), "in record (REVISION)"},
	{regexp.MustCompile(`revision=\d+`), "revision=REVISION"},
	{regexp.MustCompile(`^(v1\.37\.2)\+byre$`), "$1"},
	{regexp.MustCompile(`current: \d+`), "current: REVISION"},
	{regexp.MustCompile(`\b(\d+h)?(\d+m)?\d+(\.\d+)?(ms|µs|s)\b`), "DURATION"}, // an age is "4m47s" after two minutes
	{regexp.MustCompile(`generated-[a-z0-9]{5}\b`), "generated-XXXXX"},
}

// normalizedFields are the fields whose value, unless it is empty or 0, is replaced by
// their name.
var normalizedFields = []string{"nodePort", "healthCheckNodePort", "targetPort", "resourceVersion", "uid", "continue"}

// build are fields that say how a program was built.
var build = []string{"goVersion", "buildDate", "compiler", "platform", "gitCommit", "gitTreeState"}

// unordered are the lists that a server may give in any order, and the managers of fields,
// whose order depends on the seconds of their last changes.
var unordered = []string{"managedFields", "nonResourceRules", "resourceRules"}

// protobufDecoder decodes all built-in kinds, and metadata alone.
var protobufDecoder = func() runtime.Decoder {
	types := runtime.NewScheme()
	utilruntime.Must(scheme.AddToScheme(types))
	utilruntime.Must(metav1.AddMetaToScheme(types))
	utilruntime.Must(metav1beta1.AddMetaToScheme(types))
	return serializer.NewCodecFactory(types).UniversalDeserializer()
}()

func normalize(res *http.Response, body []byte) answer {
	a := answer{status: res.StatusCode, header: map[string]string{}}
	for _, name := range compared {
		if values := res.Header.Values(name); len(values) > 0 {
			a.header[name] = normalizeText(strings.Join(values, " | "))
		}
	}
	for _, name := range present {
		if res.Header.Get(name) != "" {
			a.header[name] = "(there)"
		}
	}
	media, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if err != nil {
		media = ""
	}
	a.body = normalizeBody(media, body)
	return a
}

func normalizeBody(media string, body []byte) any {
	switch media {
	case "application/json":
		if lines := bytes.Split(bytes.TrimSpace(body), []byte("\n")); len(lines) > 1 && json.Valid(lines[0]) {
			var events []any
			for _, line := range lines {
				events = append(events, normalizeJSON(line))
			}
			return events
		}
		return normalizeJSON(body)
	case "application/yaml":
		if asJSON, err := yaml.YAMLToJSON(body); err == nil {
			return normalizeJSON(asJSON)
		}
	case "application/vnd.kubernetes.protobuf":
		object, _, err := protobufDecoder.Decode(body, nil, nil)
		if err != nil {
			// Undecodable answers are equal only to the byte.
			return fmt.Sprintf("undecodable protobuf: %v: %q", err, body)
		}
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return fmt.Sprintf("unconvertible %T: %v", object, err)
		}
		return normalizeValue(fields)
	}
	return normalizeText(string(body))
}

func normalizeJSON(body []byte) any {
	var value any
	if err := json.Unmarshal(body, &value); err != nil {
		return normalizeText(string(body))
	}
	return normalizeValue(value)
}

func normalizeValue(value any) any {
	switch v := value.(type) {
	case map[string]any:
		maps.DeleteFunc(v, func(key string, _ any) bool {
			return strings.HasPrefix(key, "/apis/history.byre.dev/") || strings.HasPrefix(key, "dev.byre.history.") ||
				strings.HasPrefix(key, "/apis/sql.byre.dev/") || strings.HasPrefix(key, "dev.byre.sql.")
		})
		for key, field := range v {
			if slices.Contains(normalizedFields, key) && field != "" && field != float64(0) && field != int64(0) {
				v[key] = strings.ToUpper(key)
				continue
			}
			if slices.Contains(build, key) {
				v[key] = strings.ToUpper(key)
				continue
			}
			v[key] = normalizeValue(field)
		}
		// A server names its own changes after itself.
		if v["manager"] == "byre" {
			v["manager"] = "kube-apiserver"
		}
		for _, key := range unordered {
			if list, ok := v[key].([]any); ok {
				slices.SortFunc(list, func(a, b any) int { return strings.Compare(show(a), show(b)) })
			}
		}
	case []any:
		v = slices.DeleteFunc(v, isOwn)
		for i := range v {
			v[i] = normalizeValue(v[i])
		}
		return v
	case string:
		return normalizeText(v)
	case int64:
		return float64(v) // what JSON makes of it
	}
	return value
}

// own are the names of what byre serves or creates, and a stock server does not.
var own = []string{
	"history.byre.dev", "v1.history.byre.dev", "/apis/history.byre.dev", "/apis/history.byre.dev/v1",
	"sql.byre.dev", "v1.sql.byre.dev", "/apis/sql.byre.dev", "/apis/sql.byre.dev/v1",
}

// isOwn reports whether an element of a list is one of own: a path, a group or an object.
func isOwn(element any) bool {
	object, _ := element.(map[string]any)
	meta, _ := object["metadata"].(map[string]any)
	for _, name := range []any{element, object["name"], meta["name"]} {
		if text, ok := name.(string); ok && slices.Contains(own, text) {
			return true
		}
	}
	return false
}

// normalizeCauses orders the causes of a refusal, which servers give in any order.
func normalizeCauses(body any) any {
	object, _ := body.(map[string]any)
	details, _ := object["details"].(map[string]any)
	causes, _ := details["causes"].([]any)
	if len(causes) > 1 {
		slices.SortFunc(causes, func(a, b any) int { return strings.Compare(show(a), show(b)) })
		delete(object, "message") // which has them again
	}
	return body
}

func normalizeText(text string) string {
	for _, c := range changing {
		text = c.pattern.ReplaceAllString(text, c.with)
	}
	return text
}

// differences names every place where two answers differ: up to ten.
func differences(want, got answer) []string {
	var found []string
	report := func(where string, want, got any) {
		if len(found) < 10 {
			found = append(found, fmt.Sprintf("%s: %s, byre: %s", where, show(want), show(got)))
		}
	}
	if want.status != got.status {
		report("status", want.status, got.status)
	}
	for _, name := range slices.Sorted(maps.Keys(merge(want.header, got.header))) {
		if want.header[name] != got.header[name] {
			report(name, want.header[name], got.header[name])
		}
	}
	diffValue("", want.body, got.body, report)
	return found
}

func diffValue(path string, want, got any, report func(where string, want, got any)) {
	switch w := want.(type) {
	case map[string]any:
		if g, ok := got.(map[string]any); ok {
			for _, key := range slices.Sorted(maps.Keys(merge(w, g))) {
				inWant, inGot := lookup(w, key), lookup(g, key)
				diffValue(path+"."+key, inWant, inGot, report)
			}
			return
		}
	case []any:
		if g, ok := got.([]any); ok {
			if len(w) != len(g) {
				report(path+" (length)", len(w), len(g))
			}
			for i := range min(len(w), len(g)) {
				diffValue(fmt.Sprintf("%s[%d]", path, i), w[i], g[i], report)
			}
			return
		}
	}
	if want == got {
		return
	}
	w, isText := want.(string)
	g, both := got.(string)
	if isText && both && min(len(w), len(g)) > 300 {
		same := 0
		for same < min(len(w), len(g)) && w[same] == g[same] {
			same++
		}
		from := max(0, same-40)
		report(fmt.Sprintf("%s (from %d)", path, from), w[from:], g[from:])
		return
	}
	report(path, want, got)
}

// absent is not nil: null and nothing are two answers.
type absent struct{}

func lookup(m map[string]any, key string) any {
	if value, ok := m[key]; ok {
		return value
	}
	return absent{}
}

func merge[V any](a, b map[string]V) map[string]V {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]V{}
	}
	maps.Copy(all, b)
	return all
}

func show(value any) string {
	if _, ok := value.(absent); ok {
		return "(nothing)"
	}
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return fmt.Sprintf("%.300s", text)
}
