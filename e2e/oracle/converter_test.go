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
	// ca is its self-signed certificate, for its own address and the name of a Service.
	ca []byte

	mu          sync.Mutex
	misbehavior misbehavior
}

// misbehavior is how a webhook misbehaves. At most one of the fields is set.
type misbehavior struct {
	answer  http.HandlerFunc                          // answers instead of the converter
	convert func(*apiextensionsv1.ConversionResponse) // changes a correct answer
}

// newConverter starts a webhook whose certificate is also valid for the host name of a
// Service.
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

// setMisbehavior makes the webhook misbehave so from now on, or convert correctly if s is empty.
func (c *converter) setMisbehavior(s misbehavior) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.misbehavior = s
}

func (c *converter) serve(w http.ResponseWriter, req *http.Request) {
	c.mu.Lock()
	how := c.misbehavior
	c.mu.Unlock()
	if how.answer != nil {
		how.answer(w, req)
		return
	}
	review := &apiextensionsv1.ConversionReview{}
	if err := json.NewDecoder(req.Body).Decode(review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	review.Response = &apiextensionsv1.ConversionResponse{UID: review.Request.UID,
		Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, raw := range review.Request.Objects {
		object := &unstructured.Unstructured{}
		if err := json.Unmarshal(raw.Raw, &object.Object); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		rename(object, review.Request.DesiredAPIVersion)
		review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Object: object})
	}
	if how.convert != nil {
		how.convert(review.Response)
	}
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // it fails when the server has closed the connection
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

// editing changes each converted object.
func editing(change func(*unstructured.Unstructured)) misbehavior {
	return misbehavior{convert: func(r *apiextensionsv1.ConversionResponse) {
		for i := range r.ConvertedObjects {
			change(r.ConvertedObjects[i].Object.(*unstructured.Unstructured))
		}
	}}
}

// answering answers each request with a fixed status and text.
func answering(status int, media, text string) misbehavior {
	return misbehavior{answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", media)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(text)) // it fails when the server has closed the connection
	}}
}

// hanging does not answer: a request ends when its client has gone or ctx has ended.
func hanging(ctx context.Context) misbehavior {
	return misbehavior{answer: func(_ http.ResponseWriter, req *http.Request) {
		select {
		case <-req.Context().Done():
		case <-ctx.Done():
		}
	}}
}
