package write

import (
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	tablevalidation "k8s.io/apimachinery/pkg/apis/meta/v1beta1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/apihelpers"
)

// answer answers with the result of a write, in the form that the client asks for.
func (r *write) answer(status int, result runtime.Object) error {
	if r.AnswerStored != nil && r.record != nil {
		if stored, ok := r.record.Stored(result); ok && r.AnswerStored(r.w, r.req, status, stored) {
			return nil
		}
	}
	gv, serializer := r.Scope.Kind.GroupVersion(), r.Scope.Serializer
	if target := r.media.Convert; target != nil {
		var err error
		request.TrackTransformResponseObjectLatency(r.ctx, func() { result, err = r.transform(result, *target) })
		if err != nil {
			return err
		}
		gv, serializer = target.GroupVersion(), apihelpers.GetMetaInternalVersionCodecs()
	}
	responsewriters.WriteObjectNegotiated(serializer, r.Scope, gv, r.w, r.req, status, result, false)
	return nil
}

// transform returns the metadata, or the table, of a result. The negotiation has accepted the
// target.
func (r *write) transform(result runtime.Object, target schema.GroupVersionKind) (runtime.Object, error) {
	if target.Kind == "Table" {
		return r.table(result, target.GroupVersion())
	}
	if _, ok := result.(*metav1.Status); ok {
		return result, nil
	}
	if target.Kind == "PartialObjectMetadataList" {
		return nil, notAcceptable(fmt.Sprintf("you requested PartialObjectMetadataList, but the requested object is not a list (%T)", result))
	}
	return Partial(result, target.GroupVersion())
}

// Partial returns the metadata of an object in a version of PartialObjectMetadata.
func Partial(obj runtime.Object, gv schema.GroupVersion) (*metav1.PartialObjectMetadata, error) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	p := meta.AsPartialObjectMetadata(object)
	p.SetGroupVersionKind(gv.WithKind("PartialObjectMetadata"))
	return p, nil
}

func (r *write) table(result runtime.Object, gv schema.GroupVersion) (runtime.Object, error) {
	options, err := DecodeTableOptions(r.req)
	if err != nil {
		return nil, err
	}
	if _, ok := result.(*metav1.Status); ok {
		return result, nil
	}
	table, err := r.Scope.TableConvertor.ConvertToTable(r.ctx, result, options)
	if err != nil {
		return nil, err
	}
	for i := range table.Rows {
		row := &table.Rows[i].Object
		switch options.IncludeObject {
		case metav1.IncludeObject:
			row.Object, err = r.Scope.Convertor.ConvertToVersion(row.Object, r.Scope.Kind.GroupVersion())
		case metav1.IncludeNone:
			row.Object = nil
		default:
			row.Object, err = Partial(row.Object, gv)
		}
		if err != nil {
			return nil, err
		}
	}
	return table, nil
}

// DecodeTableOptions decodes the options of a request for a table.
func DecodeTableOptions(req *http.Request) (*metav1.TableOptions, error) {
	options := &metav1.TableOptions{}
	if err := metainternalversionscheme.ParameterCodec.DecodeParameters(req.URL.Query(), metav1.SchemeGroupVersion, options); err != nil {
		return nil, err
	}
	switch errs := tablevalidation.ValidateTableOptions(options); len(errs) {
	case 0:
		return options, nil
	case 1:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("Unable to convert to Table as requested: %v", errs[0].Error()))
	default:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("Unable to convert to Table as requested: %v", errs))
	}
}

// notAcceptable is upstream's error of a form that the result does not have.
func notAcceptable(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: "NotAcceptable", Message: message}}
}
