package documents_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emicklei/go-restful/v3"
	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"byre/apiserver/handlers/documents"
)

// exampleRoot has one operation, which returns a string.
func exampleRoot(path string) documents.Root {
	return documents.Root{
		Path: path,
		Operations: func() ([]restful.Route, error) {
			return []restful.Route{{
				Method: http.MethodGet, Path: "/" + path + "/widgets", Operation: "listWidget", Doc: "list the widgets",
				Produces: []string{"application/json"}, WriteSample: "",
			}}, nil
		},
		Routes: []string{"GET /" + path + "/widgets"},
	}
}

// counting counts how often a document is built.
func counting(source documents.Source, built *int) documents.Source {
	for path, document := range source.V3 {
		source.V3[path] = documents.Document{Hash: document.Hash, JSON: func(ctx context.Context) ([]byte, error) {
			*built++
			return document.JSON(ctx)
		}}
	}
	v2 := source.V2
	source.V2 = func(ctx context.Context, add func([]byte) error) error {
		*built++
		return v2(ctx, add)
	}
	return source
}

func models() *documents.Models {
	return documents.NewModels("test", func(common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		return map[string]common.OpenAPIDefinition{}
	})
}

func get(t *testing.T, h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	req := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w
}

func index(t *testing.T, h http.Handler) map[string]string {
	t.Helper()
	var list handler3.OpenAPIV3Discovery
	if err := json.Unmarshal(get(t, h, "/openapi/v3").Body.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	at := map[string]string{}
	for path, document := range list.Paths {
		at[path] = document.ServerRelativeURL
	}
	return at
}

// TestService_BuildsOnRequest: a document, also the index, is built when it is first
// requested, and only once.
func TestService_BuildsOnRequest(t *testing.T) {
	t.Parallel()
	built := 0
	service := documents.NewOpenAPI()
	service.Set("example",
		counting(models().Source([]documents.Root{exampleRoot("apis/example/v1"), exampleRoot("apis/example/v2")}, "a"),
			&built))
	location := index(t, service)["apis/example/v1"]
	if built != 0 {
		t.Fatalf("%d documents were built for the index", built)
	}
	for range 2 {
		w := get(t, service, location)
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "listExampleV1Widget") {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		if got := w.Header().Get("Cache-Control"); got != "public, immutable" {
			t.Errorf("Cache-Control %q", got)
		}
	}
	if built != 1 {
		t.Errorf("built %d documents, want 1", built)
	}
	for range 2 {
		if w := get(t, service, "/openapi/v2"); !strings.Contains(w.Body.String(), "listExampleV2Widget") {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	if built != 2 {
		t.Errorf("built %d documents, want 2", built)
	}
}

// TestService_KeepsTheBuiltinPart: a change of one source does not have the part of the built-in groups built again,
// and the document has both, whatever clients ask for meanwhile.
func TestService_KeepsTheBuiltinPart(t *testing.T) {
	t.Parallel()
	const protobuf = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
	service, built := documents.NewOpenAPI(), 0
	root := exampleRoot("apis/example/v1")
	operations := root.Operations
	root.Operations = func() ([]restful.Route, error) {
		built++
		return operations()
	}
	service.Set("example", models().Source([]documents.Root{root}, "a"))
	for i := range 3 {
		definition := models().Source([]documents.Root{exampleRoot(fmt.Sprintf("apis/definition/v%d", i))}, "a")
		service.Set("definition", definition)
		if i == 1 {
			get(t, service, "/openapi/v2")
			service.Set("definition", definition)
		}
		w := get(t, service, "/openapi/v2", "Accept", protobuf)
		var document openapi_v2.Document
		if err := proto.Unmarshal(w.Body.Bytes(), &document); err != nil {
			t.Fatal(err)
		}
		var paths []string
		for _, path := range document.GetPaths().GetPath() {
			paths = append(paths, path.GetName())
		}
		want := []string{fmt.Sprintf("/apis/definition/v%d/widgets", i), "/apis/example/v1/widgets"}
		if !slices.Equal(paths, want) {
			t.Errorf("%q, want %q", paths, want)
		}
	}
	if built != 1 {
		t.Errorf("built %d times", built)
	}
}

// Definitions may change faster than a document is built. Requests that wait get what began to be built after they
// came.
func TestService_RequestsShareABuild(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service, built := documents.NewOpenAPI(), 0
		source := models().Source([]documents.Root{exampleRoot("apis/example/v1")}, "a")
		service.Set("example", documents.Source{V2: func(ctx context.Context, add func([]byte) error) error {
			built++
			time.Sleep(time.Second)
			service.Set("definition", documents.Source{V2: func(context.Context, func([]byte) error) error { return nil }})
			return source.V2(ctx, add)
		}})
		for range 10 {
			go get(t, service, "/openapi/v2")
			synctest.Wait()
		}
		time.Sleep(20 * time.Second)
		if built != 2 { // that of the first one, and that of those who came meanwhile
			t.Errorf("%d builds", built)
		}
	})
}

// A document that is built is answered while another one is being built.
func TestService_BuildsHoldUpNoOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service := documents.NewOpenAPI()
		service.Set("example", models().Source([]documents.Root{exampleRoot("apis/example/v1")}, "a"))
		get(t, service, "/openapi/v3/apis/example/v1")
		service.Set("slow",
			documents.Source{V3: map[string]documents.Document{"apis/slow/v1": {Hash: "b",
				JSON: func(context.Context) ([]byte, error) {
					time.Sleep(time.Minute)
					return []byte("{}"), nil
				}}}})
		go get(t, service, "/openapi/v3/apis/slow/v1")
		synctest.Wait()
		begun := time.Now()
		if status := get(t, service, "/openapi/v3/apis/example/v1").Code; status != http.StatusOK || time.Since(begun) > 0 {
			t.Errorf("%d after %v", status, time.Since(begun))
		}
		if status := get(t, service, "/openapi/v3/apis/nothing/v1").Code; status != http.StatusNotFound ||
			time.Since(begun) > 0 {
			t.Errorf("%d after %v", status, time.Since(begun))
		}
		time.Sleep(time.Minute)
	})
}

// TestService_HashNamesTheDocument: a request with an old hash is redirected to the current
// document. The hash changes with the program and with what is served, and with nothing
// else.
func TestService_HashNamesTheDocument(t *testing.T) {
	t.Parallel()
	service := documents.NewOpenAPI()
	set := func(build string, roots ...documents.Root) string {
		service.Set("example", models().Source(roots, build))
		return index(t, service)["apis/example/v1"]
	}
	old := set("a", exampleRoot("apis/example/v1"))
	if same := set("a", exampleRoot("apis/example/v1"), exampleRoot("apis/example/v2")); same != old {
		t.Error("another root changed the hash")
	}
	more := exampleRoot("apis/example/v1")
	more.Routes = append(more.Routes, "POST /apis/example/v1/widgets")
	if set("a", more) == old {
		t.Error("another route left the hash")
	}
	current := set("b", exampleRoot("apis/example/v1"))
	if current == old {
		t.Error("another program left the hash")
	}
	w := get(t, service, old)
	if w.Code != http.StatusMovedPermanently || w.Header().Get("Location") != current {
		t.Errorf("%d to %q, want %q", w.Code, w.Header().Get("Location"), current)
	}
	if w := get(t, service, "/openapi/v3/apis/example/v1"); w.Code != http.StatusOK ||
		w.Header().Get("Cache-Control") != "" {
		t.Errorf("without a hash: %d %v", w.Code, w.Header())
	}
}

// phase is a type whose schema has an enum.
type phase struct{}

func (phase) OpenAPIModelName() string { return "example.phase" }

// TestBuildIdentity_CoversTheGatesAndTheVersion: a document that differs by a feature gate or by
// the emulated version has another hash.
func TestBuildIdentity_CoversTheGatesAndTheVersion(t *testing.T) {
	definitions := func(common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		enum := spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"string"}, Enum: []any{"Running"}}}
		return map[string]common.OpenAPIDefinition{"example.phase": {Schema: enum}}
	}
	root := exampleRoot("apis/example/v1")
	root.Operations = func() ([]restful.Route, error) {
		operations, err := exampleRoot(root.Path).Operations()
		operations[0].WriteSample = phase{}
		return operations, err
	}
	started, texts, hashes := time.Now(), map[string]bool{}, map[string]bool{}
	for _, enums := range []bool{true, false} {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.OpenAPIEnums, enums)
		for _, emulated := range []string{"1.36", "1.37"} {
			source := documents.NewModels(emulated, definitions).Source([]documents.Root{root},
				documents.BuildIdentity(started, emulated))
			text, err := source.V3[root.Path].JSON(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			texts[string(text)], hashes[source.V3[root.Path].Hash] = true, true
		}
	}
	if len(texts) != 4 || len(hashes) != 4 {
		t.Errorf("%d documents, %d hashes, want 4 of each", len(texts), len(hashes))
	}
}

// TestService_ServesJSONAndProtobuf: both OpenAPI versions are served as JSON and as
// protobuf, compressed for clients that accept it, and with 304 for clients that have them.
func TestService_ServesJSONAndProtobuf(t *testing.T) {
	t.Parallel()
	service := documents.NewOpenAPI()
	service.Set("example", models().Source([]documents.Root{exampleRoot("apis/example/v1")}, "a"))
	for path, message := range map[string]proto.Message{
		"/openapi/v2":                 &openapi_v2.Document{},
		"/openapi/v3/apis/example/v1": &openapi_v3.Document{},
	} {
		t.Run(path, func(t *testing.T) {
			version := strings.Split(path, "/")[2]
			form := "application/com.github.proto-openapi.spec." + version + ".v1.0+protobuf"
			for _, accept := range []string{form, "application/com.github.proto-openapi.spec." + version + "@v1.0+protobuf"} {
				w := get(t, service, path, "Accept", accept)
				if got := w.Header().Get("Content-Type"); got != form {
					t.Errorf("%s: Content-Type %q", accept, got)
				}
				if err := proto.Unmarshal(w.Body.Bytes(), message); err != nil {
					t.Errorf("%s: %v", accept, err)
				}
			}
			plain := get(t, service, path, "Accept", "application/json")
			if !json.Valid(plain.Body.Bytes()) {
				t.Errorf("not JSON: %s", plain.Body)
			}
			packed := get(t, service, path, "Accept-Encoding", "gzip")
			if packed.Header().Get("Content-Encoding") != "gzip" || packed.Body.Len() >= plain.Body.Len() {
				t.Errorf("%d bytes packed, %d plain", packed.Body.Len(), plain.Body.Len())
			}
			if w := get(t, service, path, "If-None-Match", plain.Header().Get("Etag")); w.Code != http.StatusNotModified {
				t.Errorf("unchanged, but %d", w.Code)
			}
			if w := get(t, service, path, "Accept", "text/html"); w.Code != http.StatusNotAcceptable {
				t.Errorf("text/html is %d", w.Code)
			}
		})
	}
}

// TestService_MergesSources: sources can be added and removed; in version 2 the paths of
// all are in one document.
func TestService_MergesSources(t *testing.T) {
	t.Parallel()
	service := documents.NewOpenAPI()
	if w := get(t, service, "/openapi/v2"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("without sources: %d", w.Code)
	}
	service.Set("one", models().Source([]documents.Root{exampleRoot("apis/example/v1")}, "a"))
	service.Set("two", models().Source([]documents.Root{exampleRoot("apis/other/v1")}, "a"))
	text := get(t, service, "/openapi/v2").Body.String()
	if !strings.Contains(text, "/apis/example/v1/widgets") || !strings.Contains(text, "/apis/other/v1/widgets") {
		t.Errorf("not both: %s", text)
	}
	service.Remove("two")
	if text := get(t, service, "/openapi/v2").Body.String(); strings.Contains(text, "/apis/other/v1/widgets") {
		t.Errorf("still there: %s", text)
	}
	if w := get(t, service, "/openapi/v3/apis/other/v1"); w.Code != http.StatusNotFound {
		t.Errorf("still there: %d", w.Code)
	}
	if _, ok := index(t, service)["apis/other/v1"]; ok {
		t.Error("still in the index")
	}
}

// TestService_RetriesAFailedDocument: a document whose build fails is an error, and the
// next request builds it again.
func TestService_RetriesAFailedDocument(t *testing.T) {
	t.Parallel()
	service := documents.NewOpenAPI()
	broken := true
	service.Set("example", documents.Source{V3: map[string]documents.Document{"apis/example/v1": {
		Hash: "h",
		JSON: func(context.Context) ([]byte, error) {
			if broken {
				return nil, errors.New("no models")
			}
			return []byte(`{}`), nil
		},
	}}})
	if w := get(t, service, "/openapi/v3/apis/example/v1"); w.Code != http.StatusInternalServerError ||
		strings.Contains(w.Body.String(), "models") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	broken = false
	if w := get(t, service, "/openapi/v3/apis/example/v1"); w.Code != http.StatusOK {
		t.Errorf("%d", w.Code)
	}
}

// TestService_RebuildsChangedParts: version 2 is built again when a source reports a change
// of its part; a partial document is not cached.
func TestService_RebuildsChangedParts(t *testing.T) {
	t.Parallel()
	service := documents.NewOpenAPI()
	built, partial := 0, true
	source := func(hash string) documents.Source {
		return documents.Source{
			V2Hash: hash,
			V2: func(_ context.Context, add func([]byte) error) error {
				built++
				if partial {
					return errors.Join(add([]byte(`{"info":{},"paths":{}}`)), documents.ErrPartial)
				}
				return add([]byte(`{"info":{},"paths":{}}`))
			},
			V3: map[string]documents.Document{"apis/example/v1": {Hash: hash, JSON: func(context.Context) ([]byte, error) {
				built++
				if partial {
					return []byte(`{}`), documents.ErrPartial
				}
				return []byte(`{"paths":{}}`), nil
			}}},
		}
	}
	// Sources are asked in the order of their names: an error of the first does not hide
	// the second.
	service.Set("a", documents.Source{V2: func(context.Context, func([]byte) error) error {
		return errors.New("no models")
	}})
	service.Set("b", source("1"))
	for i := range 2 {
		w := get(t, service, "/openapi/v3/apis/example/v1?hash=1")
		if w.Code != http.StatusOK || w.Header().Get("Cache-Control") != "" || w.Header().Get("Etag") == `"1"` {
			t.Errorf("partial: %d %v", w.Code, w.Header())
		}
		if w := get(t, service, "/openapi/v2"); w.Code != http.StatusOK || built != 2*(i+1) {
			t.Errorf("partial: %d, built %d", w.Code, built)
		}
	}
	partial, built = false, 0
	service.Remove("a")
	for _, step := range []struct {
		hash string
		want int
	}{{"1", 2}, {"1", 0}, {"2", 2}, {"", 2}, {"", 1}} {
		built = 0
		service.Set("b", source(step.hash))
		get(t, service, "/openapi/v2")
		if w := get(t, service, "/openapi/v3/apis/example/v1"); w.Code != http.StatusOK || built != step.want {
			t.Errorf("hash %q: %d, built %d, want %d", step.hash, w.Code, built, step.want)
		}
	}
}

// TestService_VersionsDoNotWaitForEachOther: documents of the two versions are built
// concurrently, and a client that gives up waiting gets its error at once.
func TestService_VersionsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	service := documents.NewOpenAPI()
	begun, finish := make(chan struct{}), make(chan struct{})
	service.Set("example", documents.Source{
		V2: func(_ context.Context, add func([]byte) error) error {
			close(begun)
			<-finish
			return add([]byte(`{"info":{},"paths":{}}`))
		},
		V3: map[string]documents.Document{"apis/example/v1": {Hash: "1", JSON: func(context.Context) ([]byte, error) {
			return []byte(`{}`), nil
		}}},
	})
	done := make(chan int)
	go func() { done <- get(t, service, "/openapi/v2").Code }()
	<-begun
	if w := get(t, service, "/openapi/v3/apis/example/v1"); w.Code != http.StatusOK {
		t.Errorf("version 3 is %d", w.Code)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	service.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/openapi/v2", nil))
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("given up: %d", w.Code)
	}
	close(finish)
	if code := <-done; code != http.StatusOK {
		t.Errorf("version 2 is %d", code)
	}
}
