package oracle

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/cert"
)

// converter is a conversion webhook that both servers ask. It renames a field:
// v1beta1's spec.cron is v1's spec.schedule.
type converter struct {
	*httptest.Server
	// ca is the certificate that it shows, of itself and of a Service.
	ca []byte

	mu    sync.Mutex
	spoil spoiled
}

// spoiled is what a webhook does wrong. At most one of the two is set.
type spoiled struct {
	answer  http.HandlerFunc                          // instead of converting
	convert func(*apiextensionsv1.ConversionResponse) // to what it has converted
}

// newConverter starts a webhook that can also be reached as a Service of a host
// name in the cluster.
func newConverter(t *testing.T, service string) *converter {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", nil, []string{service})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	c := &converter{ca: certificate}
	c.Server = httptest.NewUnstartedServer(http.HandlerFunc(c.serve))
	c.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	c.StartTLS()
	t.Cleanup(c.Close)
	return c
}

// spoilt does something wrong from now on; nothing any more, if it is empty.
func (c *converter) spoilt(s spoiled) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spoil = s
}

func (c *converter) serve(w http.ResponseWriter, req *http.Request) {
	c.mu.Lock()
	spoil := c.spoil
	c.mu.Unlock()
	if spoil.answer != nil {
		spoil.answer(w, req)
		return
	}
	review := &apiextensionsv1.ConversionReview{}
	if err := json.NewDecoder(req.Body).Decode(review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	review.Response = &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, raw := range review.Request.Objects {
		object := &unstructured.Unstructured{}
		if err := json.Unmarshal(raw.Raw, &object.Object); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		rename(object, review.Request.DesiredAPIVersion)
		review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Object: object})
	}
	if spoil.convert != nil {
		spoil.convert(review.Response)
	}
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // who has gone asks again
}

func rename(object *unstructured.Unstructured, version string) {
	from, to := "cron", "schedule"
	if version == "jobs.example.com/v1beta1" {
		from, to = to, from
	}
	if spec, ok := object.Object["spec"].(map[string]any); ok && spec[from] != nil {
		spec[to] = spec[from]
		delete(spec, from)
	}
	object.SetAPIVersion(version)
}

// edits changes each object that was converted.
func edits(change func(*unstructured.Unstructured)) spoiled {
	return spoiled{convert: func(r *apiextensionsv1.ConversionResponse) {
		for i := range r.ConvertedObjects {
			change(r.ConvertedObjects[i].Object.(*unstructured.Unstructured))
		}
	}}
}

// says answers a fixed text.
func says(status int, media, text string) spoiled {
	return spoiled{answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", media)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(text)) // who has gone asks again
	}}
}

// hangs answers when nobody waits any more.
func hangs(ctx context.Context) spoiled {
	return spoiled{answer: func(_ http.ResponseWriter, req *http.Request) {
		select {
		case <-req.Context().Done():
		case <-ctx.Done():
		}
	}}
}
