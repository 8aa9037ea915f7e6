package crd_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

const crontabs = "crontabs.example.com"

// TestDefinition_ChangesOfNoAnswerEndNoWatch: a new description and new certificate
// authorities of the webhook end no watch. The webhook is called by the new authorities, and
// OpenAPI has the new description. Another change of the spec ends the watches.
func TestDefinition_ChangesOfNoAnswerEndNoWatch(t *testing.T) {
	t.Parallel()
	onDatabases(t, testKeptWatches)
}

func testKeptWatches(t *testing.T, s *server) {
	c := newConverter(t)
	s.defineConverted(t, c)
	if w := s.do(t, http.MethodPost, crontabPath("v1"), crontab("v1", "a", `{"schedule":"old"}`)); w.Code != http.StatusCreated {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	var watches []apiwatch.Interface
	for _, version := range []string{"v1", "v1beta1"} {
		client := s.dynamic.Resource(schema.GroupVersionResource{Group: "example.com", Version: version, Resource: "crontabs"}).Namespace("default")
		list, err := client.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		events, err := client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
		if err != nil {
			t.Fatal(err)
		}
		defer events.Stop()
		watches = append(watches, events)
	}
	trust := func(authorities []byte) {
		s.change(t, crontabs, func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Spec.Conversion.Webhook.ClientConfig.CABundle = authorities
		})
	}
	var right []byte
	s.change(t, crontabs, func(crd *apiextensionsv1.CustomResourceDefinition) {
		right = crd.Spec.Conversion.Webhook.ClientConfig.CABundle
		crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Description = "what a new description says"
	})
	trust(otherAuthority(t))
	one := crontabPath("v1beta1") + "/a"
	if w := s.do(t, http.MethodGet, one, ""); w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "certificate") {
		t.Errorf("by authorities of another webhook: %d %s", w.Code, w.Body)
	}
	trust(right)
	if w := s.do(t, http.MethodGet, one, ""); w.Code != http.StatusOK {
		t.Errorf("by the right authorities: %d %s", w.Code, w.Body)
	}
	w := s.do(t, http.MethodPatch, crontabPath("v1")+"/a", `{"spec":{"schedule":"new"}}`, "Content-Type", "application/merge-patch+json")
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	for i, events := range watches {
		event, open := <-events.ResultChan()
		if !open || event.Type != apiwatch.Modified || !strings.Contains(fmt.Sprint(event.Object.(*unstructured.Unstructured).Object["spec"]), "new") {
			t.Fatalf("watch %d: open is %v, %v", i, open, event)
		}
	}
	s.change(t, crontabs, func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Spec.Versions[0].AdditionalPrinterColumns = []apiextensionsv1.CustomResourceColumnDefinition{{Name: "Zone", Type: "string", JSONPath: ".spec.zone"}}
	})
	for i, events := range watches {
		if event, open := <-events.ResultChan(); open {
			t.Errorf("watch %d after a change of an answer: %v", i, event)
		}
	}
}

// otherAuthority returns the certificate of an authority that has signed nothing, as PEM.
func otherAuthority(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "other"}, IsCA: true, NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
}

// TestConversion_IsMadeAnewAfterAChangeOfTheSpec: what a webhook has converted is not used
// after the strategy was another one for a while, although the definition is again what it
// was.
func TestConversion_IsMadeAnewAfterAChangeOfTheSpec(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, s *server) {
		c := newConverter(t)
		s.defineConverted(t, c)
		if w := s.do(t, http.MethodPost, crontabPath("v1"), crontab("v1", "a", `{"schedule":"* *"}`)); w.Code != http.StatusCreated {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		reads := map[string]string{
			"GET":           crontabPath("v1beta1") + "/a",
			"GET, indented": crontabPath("v1beta1") + "/a?pretty=true",
			"GET, any":      crontabPath("v1beta1") + "/a?resourceVersion=0",
			"LIST":          crontabPath("v1beta1"),
		}
		for name, path := range reads {
			if w := s.do(t, http.MethodGet, path, ""); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "* *") {
				t.Fatalf("%s: %d %s", name, w.Code, w.Body)
			}
		}
		change := func(r *apiextensionsv1.ConversionResponse) {
			for i := range r.ConvertedObjects {
				r.ConvertedObjects[i].Object.(*unstructured.Unstructured).Object["spec"] = map[string]any{"cron": "of another mind"}
			}
		}
		c.spoil.Store(&change)
		var webhook *apiextensionsv1.CustomResourceConversion
		s.change(t, crontabs, func(crd *apiextensionsv1.CustomResourceDefinition) {
			webhook, crd.Spec.Conversion = crd.Spec.Conversion, &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter}
		})
		if w := s.do(t, http.MethodGet, reads["GET"], ""); w.Code != http.StatusOK {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		s.change(t, crontabs, func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Spec.Conversion = webhook })
		for name, path := range reads {
			if w := s.do(t, http.MethodGet, path, ""); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "of another mind") {
				t.Errorf("%s: %d %s", name, w.Code, w.Body)
			}
		}
	})
}
