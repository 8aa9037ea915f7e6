package documents

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/munnerz/goautoneg"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/klog/v2"
)

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
			if (clause.Type == "application" || clause.Type == "*") && (clause.SubType == form.subType || clause.SubType == "*") {
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
