package documents

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/munnerz/goautoneg"
	"golang.org/x/sync/semaphore"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/handler3"
)

// OpenAPI serves the documents of all sources. Sources may be set and removed while it
// serves.
type OpenAPI struct {
	now func() time.Time

	mu      sync.Mutex
	sources map[string]Source
	// generation counts the changes of the sources' parts of OpenAPI v2, and builds the builds of that.
	generation, builds int
	v2                 *builtDocument            // the last one that was built; nil before the first request
	v3                 map[string]*builtDocument // by path

	// buildingV2 and buildingV3 are held during a build, so that one document of each
	// version is built at a time: its tree takes tens of megabytes.
	buildingV2, buildingV3 *semaphore.Weighted
}

// builtDocument is an encoded document.
type builtDocument struct {
	hash  string
	built time.Time
	json  []byte // gzip
	// protobuf is made from json when a client requests it first.
	protobuf []byte // gzip
	// encoded is the last document before that has protobuf, of which withProtobuf takes what is the same; nil if
	// there is none, and once this one has.
	encoded *builtDocument
	// partial says that a part is missing. The document is sent but not kept.
	partial bool
	// generation and build are those of Service, of OpenAPI v2.
	generation, build int
}

// NewOpenAPI returns a service without sources.
func NewOpenAPI() *OpenAPI {
	return &OpenAPI{
		now: time.Now, sources: map[string]Source{}, v3: map[string]*builtDocument{},
		buildingV2: semaphore.NewWeighted(1), buildingV3: semaphore.NewWeighted(1),
	}
}

// Set adds a source or replaces the one with the same name.
func (s *OpenAPI) Set(name string, source Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, ok := s.sources[name]
	s.sources[name] = source
	s.invalidate(!ok || !last.sameV2(source))
}

// sameV2 reports whether the hashes say that both sources have the same part of OpenAPI v2.
func (s Source) sameV2(other Source) bool {
	if s.V2 == nil || other.V2 == nil {
		return s.V2 == nil && other.V2 == nil
	}
	return s.V2Hash != "" && s.V2Hash == other.V2Hash
}

// Remove removes a source.
func (s *OpenAPI) Remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.sources[name]; ok {
		delete(s.sources, name)
		s.invalidate(true)
	}
}

// invalidate drops the OpenAPI v3 documents whose hash has changed and, if v2 is true, the
// OpenAPI v2 document. The caller holds mu.
func (s *OpenAPI) invalidate(v2 bool) {
	if v2 {
		s.generation++
	}
	for path, built := range s.v3 {
		if current, ok := s.findV3(path); !ok || current.Hash != built.hash {
			delete(s.v3, path)
		}
	}
}

// findV3 returns the document at path, from the first source by name that has one. The
// caller holds mu.
func (s *OpenAPI) findV3(path string) (Document, bool) {
	for _, name := range slices.Sorted(maps.Keys(s.sources)) {
		if d, ok := s.sources[name].V3[path]; ok {
			return d, true
		}
	}
	return Document{}, false
}

// index returns the index of OpenAPI v3 documents and their URLs as JSON.
func (s *OpenAPI) index() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	paths := map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}
	for _, source := range s.sources {
		for path := range source.V3 {
			if d, ok := s.findV3(path); ok {
				paths[path] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: location(path, d.Hash)}
			}
		}
	}
	return json.Marshal(handler3.OpenAPIV3Discovery{Paths: paths})
}

// location returns the URL of a document. It has the document's hash, so that a client may
// cache the response forever.
func location(path, hash string) string {
	u := url.URL{Path: "/openapi/v3/" + path, RawQuery: url.Values{"hash": {hash}}.Encode()}
	return u.String()
}

// knownV3 returns the document at path, if a source has it, and what was built of it last.
func (s *OpenAPI) knownV3(path string) (source Document, built *builtDocument, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	source, ok = s.findV3(path)
	return source, s.v3[path], ok
}

// getV3 returns the document at path. It builds the document if there is no current one. It
// returns nil if no source has the document.
func (s *OpenAPI) getV3(ctx context.Context, path string, protobuf bool) (*builtDocument, error) {
	source, built, ok := s.knownV3(path)
	if !ok || built != nil && built.hash == source.Hash && (!protobuf || built.protobuf != nil) {
		return built, nil
	}
	if err := s.buildingV3.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer s.buildingV3.Release(1)
	if source, built, ok = s.knownV3(path); !ok {
		return nil, nil
	}
	if built == nil || built.hash != source.Hash {
		text, err := source.JSON(ctx)
		partial := errors.Is(err, ErrPartial)
		if err != nil && !partial {
			return nil, err
		}
		compressed, err := Compress(text)
		if err != nil {
			return nil, err
		}
		built = &builtDocument{hash: source.Hash, built: s.now(), json: compressed, partial: partial}
		if partial {
			built.hash = Hash(string(text))
		}
	}
	if protobuf && built.protobuf == nil {
		var err error
		if built, err = built.withProtobuf(handler3.ToV3ProtoBinary); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if current, ok := s.findV3(path); ok && current.Hash == built.hash && !built.partial {
		s.v3[path] = built
	}
	return built, nil
}

// getV2 returns the OpenAPI v2 document. It builds the document if there is neither a current one, nor one whose
// build began after the call: sources may change faster than a document is built.
func (s *OpenAPI) getV2(ctx context.Context, protobuf bool) (*builtDocument, error) {
	s.mu.Lock()
	last := s.builds
	s.mu.Unlock()
	if err := s.buildingV2.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer s.buildingV2.Release(1)

	s.mu.Lock()
	built, generation, sources := s.v2, s.generation, maps.Clone(s.sources)
	isCurrent := built != nil && (built.build > last || built.generation == generation && !built.partial)
	if !isCurrent {
		s.builds++
		last = s.builds
	}
	s.mu.Unlock()
	if !isCurrent {
		// With many CustomResourceDefinitions the build may take longer than a
		// request's deadline. It is therefore not cancelled: the client's retry gets
		// the result.
		whole, partial, err := merge(context.WithoutCancel(ctx), sources)
		if err != nil {
			return nil, err
		}
		hash, compressed, err := whole.encode()
		if err != nil {
			return nil, err
		}
		encoded := built
		if encoded != nil && encoded.protobuf == nil {
			encoded = encoded.encoded
		}
		built = &builtDocument{
			hash: hash, built: s.now(), json: compressed, partial: partial,
			generation: generation, build: last, encoded: encoded,
		}
		// The tree of the built-in API takes tens of megabytes, more than the rest of an
		// idle server. Without this call the process would keep them for minutes.
		defer debug.FreeOSMemory()
	}
	if protobuf && built.protobuf == nil {
		var err error
		if built, err = built.withProtobuf(built.toProtobufV2); err != nil {
			return nil, err
		}
		defer debug.FreeOSMemory()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.v2 = built
	return built, nil
}

func (e *builtDocument) withProtobuf(convert func([]byte) ([]byte, error)) (*builtDocument, error) {
	text, err := Decompress(e.json)
	if err != nil {
		return nil, err
	}
	binary, err := convert(text)
	if err != nil {
		return nil, err
	}
	both := *e
	both.protobuf, err = Compress(binary)
	both.encoded = nil
	return &both, err
}

// toProtobufV2 converts the text of the document.
func (e *builtDocument) toProtobufV2(text []byte) ([]byte, error) {
	if e.encoded == nil {
		return ToProtobufV2(text)
	}
	lastText, err := Decompress(e.encoded.json)
	if err != nil {
		return nil, err
	}
	last, err := Decompress(e.encoded.protobuf)
	if err != nil {
		return nil, err
	}
	return toProtobufV2(text, lastText, last)
}

// ServeHTTP serves /openapi/v2, /openapi/v3 and the paths below /openapi/v3.
func (s *OpenAPI) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch path := strings.TrimSuffix(req.URL.Path, "/"); {
	case path == "/openapi/v2":
		s.serveV2(w, req)
	case path == "/openapi/v3":
		s.serveIndex(w, req)
	case strings.HasPrefix(path, "/openapi/v3/"):
		s.serveV3(w, req, strings.TrimPrefix(path, "/openapi/v3/"))
	default:
		http.NotFound(w, req)
	}
}

func (s *OpenAPI) serveV2(w http.ResponseWriter, req *http.Request) {
	media, ok := negotiate(req, "v2")
	w.Header()["Vary"] = []string{"Accept-Encoding", "Accept"}
	if !ok {
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	document, err := s.getV2(req.Context(), media.protobuf)
	if err != nil {
		klog.FromContext(req.Context()).Error(err, "Could not build the OpenAPI v2 document")
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	write(w, req, document, media)
}

func (s *OpenAPI) serveIndex(w http.ResponseWriter, req *http.Request) {
	index, err := s.index()
	if err != nil {
		klog.FromContext(req.Context()).Error(err, "Could not build the index of OpenAPI v3 documents")
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Etag", strconv.Quote(Hash(string(index))))
	w.Header().Set("Content-Type", "application/json")
	http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(index))
}

func (s *OpenAPI) serveV3(w http.ResponseWriter, req *http.Request, path string) {
	media, ok := negotiate(req, "v3")
	if !ok {
		w.Header().Set("Vary", "Accept")
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	document, err := s.getV3(req.Context(), path, media.protobuf)
	if err != nil {
		klog.FromContext(req.Context()).Error(err, "Could not build an OpenAPI v3 document", "path", path)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	if document == nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header()["Vary"] = []string{"Accept", "Accept-Encoding"}
	if asked := req.URL.Query().Get("hash"); asked != "" && !document.partial {
		if asked != document.hash {
			http.Redirect(w, req, location(path, document.hash), http.StatusMovedPermanently)
			return
		}
		// The document of a hash never changes.
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).UTC().Format(http.TimeFormat))
	}
	write(w, req, document, media)
}

// media is the encoding in which a document is sent.
type media struct {
	contentType string
	protobuf    bool
}

// negotiate selects the encoding by the Accept header. It prefers JSON. It returns false
// if the client accepts neither encoding.
func negotiate(req *http.Request, version string) (media, bool) {
	accept := req.Header.Get("Accept")
	if accept == "" {
		accept = "*/*"
	}
	protobuf := "com.github.proto-openapi.spec." + version + ".v1.0+protobuf"
	forms := []struct {
		subType string
		media   media
	}{
		{"json", media{"application/json", false}},
		{protobuf, media{"application/" + protobuf, true}},
		// The deprecated name, whose "@" is not valid in a media type.
		{"com.github.proto-openapi.spec." + version + "@v1.0+protobuf", media{"application/" + protobuf, true}},
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		for _, form := range forms {
			if (clause.Type == "application" || clause.Type == "*") &&
				(clause.SubType == form.subType || clause.SubType == "*") {
				return form.media, true
			}
		}
	}
	return media{}, false
}

// write sends a document: the stored bytes to a client that accepts gzip, and the
// decompressed ones to others.
func write(w http.ResponseWriter, req *http.Request, document *builtDocument, m media) {
	data := document.json
	if m.protobuf {
		data = document.protobuf
	}
	w.Header().Set("Content-Type", m.contentType)
	w.Header().Set("Etag", strconv.Quote(document.hash))
	if responsewriters.ContentEncodingSupported(req, features.APIResponseCompression) == "gzip" {
		w.Header().Set("Content-Encoding", "gzip")
	} else {
		var err error
		if data, err = Decompress(data); err != nil {
			klog.FromContext(req.Context()).Error(err, "Could not decompress an OpenAPI document")
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
	}
	http.ServeContent(w, req, "", document.built, bytes.NewReader(data))
}

// A Source contributes to the documents: the built-in groups, the custom resources of one
// CustomResourceDefinition, or one aggregated API server.
type Source struct {
	// V2 calls add with the source's parts of the OpenAPI v2 document, one after the other;
	// nil if it has none. Each part is a document as kube-openapi encodes it. V2 must not
	// wait for the network, because every request for the document waits for it. If it
	// returns an error, the document is sent without the parts that are missing and not
	// kept.
	V2 func(ctx context.Context, add func(document []byte) error) error
	// V2Hash changes whenever the part changes. Set drops the OpenAPI v2 document if
	// the hash is another one or empty.
	V2Hash string
	// V3 has the OpenAPI v3 documents by path ("apis/apps/v1").
	V3 map[string]Document
}

// A Document is one OpenAPI v3 document.
type Document struct {
	// Hash changes whenever the document does.
	Hash string
	// JSON builds the document. Like Source.V2, it must not wait for the network and
	// may return ErrPartial together with a result.
	JSON func(context.Context) ([]byte, error)
}

// ErrPartial is returned together with a document, or a part of one, that lacks something
// which could not be read now. The Service sends such a document and does not keep it.
var ErrPartial = errors.New("a part of the document is missing for now")

// Source returns a source with the given roots. build is the result of BuildIdentity. Its part of OpenAPI v2 is built
// once: each change of another source has the whole document built again.
func (m *Models) Source(roots []Root, build string) Source {
	v2 := sync.OnceValues(func() ([]byte, error) {
		document, err := m.V2(roots)
		if err != nil {
			return nil, err
		}
		return Compress(document)
	})
	source := Source{
		V2: func(_ context.Context, add func(document []byte) error) error {
			packed, err := v2()
			if err != nil {
				return err
			}
			document, err := Decompress(packed)
			if err != nil {
				return err
			}
			return add(document)
		},
		V3: map[string]Document{},
	}
	for _, root := range roots {
		source.V3[root.Path] = Document{
			Hash: root.fingerprint(build),
			JSON: func(context.Context) ([]byte, error) { return m.V3(root) },
		}
	}
	return source
}

// Compress returns data in gzip, the form in which a document is kept and sent to clients
// that accept gzip.
func Compress(data []byte) ([]byte, error) {
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return bytes.Clone(buf.Bytes()), nil
}

// Decompress is the inverse of Compress.
func Decompress(data []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	// gzip ends with the size (RFC 1952). A buffer that grows would take twice the memory.
	var buf bytes.Buffer
	buf.Grow(int(binary.LittleEndian.Uint32(data[len(data)-4:])) + bytes.MinRead)
	if _, err := buf.ReadFrom(r); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
