package peers

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// admit answers an AdmissionReview as its path says:
//
//   - /admit/deny refuses, /admit/slow does not answer before the client disconnects;
//   - /admit/warn allows, with a warning and an audit annotation;
//   - /admit/count/LABEL adds one to the label, /admit/dry/LABEL sets it to
//     whether this is a dry run, /admit/who/LABEL to the bearer token that it was
//     called with, /admit/what/LABEL to the operation and the subresource.
func admit(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if !read(w, r, &review) {
		return
	}
	asked := review.Request
	response := &admissionv1.AdmissionResponse{UID: asked.UID, Allowed: true}
	review.Request, review.Response = nil, response
	var err error
	label := r.PathValue("label")
	switch r.PathValue("judge") {
	case "deny":
		response.Allowed = false
		response.Result = &metav1.Status{Message: "hooked: " + asked.Name, Code: http.StatusForbidden}
	case "slow":
		<-r.Context().Done()
		return
	case "warn":
		response.Warnings = []string{"hooked: have a care"}
		response.AuditAnnotations = map[string]string{"seen": asked.Name}
	case "count":
		err = patch(asked, response, label, func(old string) string {
			count, _ := strconv.Atoi(old) // none is 0
			return strconv.Itoa(count + 1)
		})
	case "dry":
		err = patch(asked, response, label, func(string) string { return fmt.Sprint(asked.DryRun != nil && *asked.DryRun) })
	case "who":
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		err = patch(asked, response, label, func(string) string { return token })
	case "what":
		what := strings.Trim(string(asked.Operation)+"-"+asked.SubResource, "-")
		err = patch(asked, response, label, func(string) string { return what })
	default:
		http.NotFound(w, r)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer(w, review)
}

// patch changes one label of the object in question.
func patch(
	asked *admissionv1.AdmissionRequest, response *admissionv1.AdmissionResponse, label string,
	change func(old string) string,
) error {
	var object struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(asked.Object.Raw, &object); err != nil {
		return err
	}
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	var operations []operation
	if object.Metadata.Labels == nil {
		operations = append(operations, operation{"add", "/metadata/labels", map[string]string{}})
	}
	operations = append(operations, operation{"add", "/metadata/labels/" + label, change(object.Metadata.Labels[label])})
	encoded, err := json.Marshal(operations)
	if err != nil {
		return err
	}
	kind := admissionv1.PatchTypeJSONPatch
	response.PatchType, response.Patch = &kind, encoded
	return nil
}
