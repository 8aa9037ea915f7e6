package openapi

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/url"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Service serves the documents of all sources. Sources may be set and removed
// while it serves. It starts no goroutine.
type Service struct {
	now func() time.Time

	mu      sync.Mutex
	sources map[string]Source
	// generation counts the changes of what sources have of version 2, for telling
	// whether what was built meanwhile is still true.
	generation int
	v2         *builtDocument            // nil until asked for, and after a change
	v3         map[string]*builtDocument // by path

	// buildingV2 and buildingV3 let one document of each version be built at a time:
	// it takes some tens of megabytes while it is a tree.
	buildingV2, buildingV3 semaphore
}

// semaphore is a lock that can be waited for with a context.
type semaphore chan struct{}

func (t semaphore) acquire(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t semaphore) release() { <-t }

// builtDocument is a finished document.
type builtDocument struct {
	hash  string
	built time.Time
	json  []byte // gzip
	// protobuf is made of json when first asked for.
	protobuf []byte // gzip
	// partial: something is missing, and the document is not kept.
	partial bool
}

// NewService makes a service without sources.
func NewService() *Service {
	return &Service{
		now: time.Now, sources: map[string]Source{}, v3: map[string]*builtDocument{},
		buildingV2: make(semaphore, 1), buildingV3: make(semaphore, 1),
	}
}

// Set adds a source or replaces the one of that name.
func (s *Service) Set(name string, source Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, ok := s.sources[name]
	s.sources[name] = source
	s.invalidate(!ok || !last.sameV2(source))
}

// sameV2 says whether two states of a source are known to have the same of version 2.
func (s Source) sameV2(other Source) bool {
	if s.V2 == nil || other.V2 == nil {
		return s.V2 == nil && other.V2 == nil
	}
	return s.V2Hash != "" && s.V2Hash == other.V2Hash
}

// Remove takes a source back.
func (s *Service) Remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.sources[name]; ok {
		delete(s.sources, name)
		s.invalidate(true)
	}
}

// invalidate drops what is no longer true. The caller holds mu.
func (s *Service) invalidate(v2 bool) {
	if v2 {
		s.generation++
		s.v2 = nil
	}
	for path, built := range s.v3 {
		if current, ok := s.findV3(path); !ok || current.Hash != built.hash {
			delete(s.v3, path)
		}
	}
}

// findV3 is the document at path, of the first source by name that has one.
// The caller holds mu.
func (s *Service) findV3(path string) (Document, bool) {
	for _, name := range slices.Sorted(maps.Keys(s.sources)) {
		if d, ok := s.sources[name].V3[path]; ok {
			return d, true
		}
	}
	return Document{}, false
}

// index is the list of the documents of version 3 and where to get them, as
// JSON.
func (s *Service) index() ([]byte, error) {
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

// location is where a client finds a document, with the hash that lets it keep
// what it has got.
func location(path, hash string) string {
	u := url.URL{Path: "/openapi/v3/" + path, RawQuery: url.Values{"hash": {hash}}.Encode()}
	return u.String()
}

// getV3 returns the document at path, built now if it was not before. It is
// nil if there is none.
func (s *Service) getV3(ctx context.Context, path string, protobuf bool) (*builtDocument, error) {
	if err := s.buildingV3.acquire(ctx); err != nil {
		return nil, err
	}
	defer s.buildingV3.release()

	s.mu.Lock()
	source, ok := s.findV3(path)
	built := s.v3[path]
	s.mu.Unlock()
	if !ok {
		return nil, nil
	}
	if built == nil || built.hash != source.Hash {
		text, err := source.JSON(ctx)
		partial := errors.Is(err, ErrPartial)
		if err != nil && !partial {
			return nil, err
		}
		if built, err = newBuiltDocument(source.Hash, text, s.now()); err != nil {
			return nil, err
		}
		if built.partial = partial; partial {
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

// getV2 returns the document of version 2, built now if it was not before.
func (s *Service) getV2(ctx context.Context, protobuf bool) (*builtDocument, error) {
	if err := s.buildingV2.acquire(ctx); err != nil {
		return nil, err
	}
	defer s.buildingV2.release()

	s.mu.Lock()
	built, generation, sources := s.v2, s.generation, maps.Clone(s.sources)
	s.mu.Unlock()
	if built == nil {
		// With many definitions this may take longer than a request may. Who asks
		// again then gets what was built meanwhile.
		text, partial, err := merge(context.WithoutCancel(ctx), sources)
		if err != nil {
			return nil, err
		}
		if built, err = newBuiltDocument(Hash(string(text)), text, s.now()); err != nil {
			return nil, err
		}
		built.partial = partial
		// The whole API as a tree is some tens of megabytes, more than an idle
		// server needs for all else; it would keep them for minutes.
		defer debug.FreeOSMemory()
	}
	if protobuf && built.protobuf == nil {
		var err error
		if built, err = built.withProtobuf(handler.ToProtoBinary); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if generation == s.generation && !built.partial {
		s.v2 = built
	}
	return built, nil
}

// merge joins the sources' parts, in the order of their names: of paths that
// several have, the first stays. What is wrong with one part does not hide the
// others. The document is partial if a part could not be had.
func merge(ctx context.Context, sources map[string]Source) (text []byte, partial bool, err error) {
	var whole *spec.Swagger
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		if sources[name].V2 == nil {
			continue
		}
		part, err := sources[name].V2(ctx)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Part of OpenAPI version 2 is left out", "source", name)
			if partial = true; !errors.Is(err, ErrPartial) {
				continue
			}
		}
		if whole == nil {
			whole = part
			continue
		}
		if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(whole, part); err != nil {
			klog.FromContext(ctx).Error(err, "Part of OpenAPI version 2 can't be merged", "source", name)
		}
	}
	if whole == nil {
		return nil, false, errNoSources
	}
	text, err = whole.MarshalJSON()
	return text, partial, err
}

var errNoSources = errors.New("openapi: nothing to describe")

func newBuiltDocument(hash string, text []byte, built time.Time) (*builtDocument, error) {
	compressed, err := Compress(text)
	return &builtDocument{hash: hash, built: built, json: compressed}, err
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
	compressed, err := Compress(binary)
	return &builtDocument{hash: e.hash, built: e.built, json: e.json, protobuf: compressed, partial: e.partial}, err
}
