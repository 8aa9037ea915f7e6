package handlers

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/registry/rest"

	"byre/apiserver/handlers/managedfields"
)

// updatedFields are the managed fields of one update or patch.
//
// What upstream does: the managed fields are part of both objects in all steps. A patch
// is merged with their JSON. The field manager parses and writes them. After admission
// the handler parses them once more, in case a plugin has made them invalid.
//
// What is done instead: the managed fields are removed from the live object, and from
// the object in the body of an update, while the request is applied. Upstream's field
// manager then computes none. When admission begins, which is the handler's next step,
// a managedfields.Updater sets the managed fields of both objects. If admission leaves
// them unchanged, they are removed from the new object again, and restored after the
// handler is done with the object (as for creates: see createdFields).
//
// What it relies on: the field manager computes nothing for an object that has a UID
// and no managed fields. The handler calls admission with the objects that it has given
// to the field manager. Where the request mentions managed fields, or admission is not
// reached, upstream handles the whole request, because its errors may show the object.
// TestUpdate_HasManagedFieldsOfUpstream fails when upstream does otherwise.
//
// What it earns: a quarter of the processor time of the handler and the storage of a patch of
// a Pod's status (BenchmarkStatusPatch).
//
// One value serves one request. The handler calls UpdatedObject for each attempt to write,
// one after the other.
type updatedFields struct {
	updater *managedfields.Updater
	manager string
	// decoded is the object in the body of an update; bodyEntries are its managed fields.
	decoded     metav1.Object
	bodyEntries []metav1.ManagedFieldsEntry
	// patch is the body of a patch; nil for an update.
	patch *copiedBody
	// isRepeated is true when upstream tries the write again without managed fields,
	// because the object was too large with them.
	isRepeated bool

	// entries are the managed fields of the live object during an attempt; nil where
	// upstream computes the managed fields. isAdmitted is true after admission has
	// begun. removed are the managed fields that admission has left unchanged.
	entries, removed []metav1.ManagedFieldsEntry
	isAdmitted       bool
}

// updateResource is upstream's handler of updates with what updatedFields describes.
func (r *Resource) updateResource(updater rest.Updater, scope *handlers.RequestScope, admit admission.Interface) http.HandlerFunc {
	both, ok := admit.(plugins)
	if r.updater == nil || !ok || !both.Handles(admission.Update) {
		return handlers.UpdateResource(updater, scope, admit)
	}
	return func(w http.ResponseWriter, req *http.Request) {
		if auditsRequests(req) {
			handlers.UpdateResource(updater, scope, admit)(w, req)
			return
		}
		f := &updatedFields{updater: r.updater, manager: managerOfAgent(req.UserAgent())}
		scope := *scope
		scope.Serializer = fieldRemovingSerializer{scope.Serializer, f}
		handlers.UpdateResource(fieldsUpdater{updater, f}, &scope, updatedFieldsAdmission{both, f})(w, req)
	}
}

// patchResource is upstream's handler of patches with what updatedFields describes.
func (r *Resource) patchResource(patcher rest.Patcher, scope *handlers.RequestScope, admit admission.Interface) http.HandlerFunc {
	both, ok := admit.(plugins)
	if r.updater == nil || !ok || !both.Handles(admission.Update) {
		return handlers.PatchResource(patcher, scope, admit, r.patchTypes)
	}
	return func(w http.ResponseWriter, req *http.Request) {
		patch := &copiedBody{ReadCloser: req.Body}
		if !patch.isOf(req.Header.Get("Content-Type")) {
			handlers.PatchResource(patcher, scope, admit, r.patchTypes)(w, req)
			return
		}
		copied := *req
		copied.Body = patch
		f := &updatedFields{updater: r.updater, manager: managerOfAgent(req.UserAgent()), patch: patch}
		handlers.PatchResource(fieldsPatcher{patcher, fieldsUpdater{patcher, f}}, scope, updatedFieldsAdmission{both, f}, r.patchTypes)(w, &copied)
	}
}

// auditsRequests reports whether the body of a request goes into the audit log.
func auditsRequests(req *http.Request) bool {
	log := audit.AuditContextFrom(req.Context())
	return log != nil && !log.GetEventLevel().Less(auditinternal.LevelRequest)
}

// copiedBody keeps a copy of what the handler reads of a request's body.
type copiedBody struct {
	io.ReadCloser
	read []byte
}

func (b *copiedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read = append(b.read, p[:n]...)
	return n, err
}

// isOf reports whether a body of the content type names all the fields that it changes.
// A JSON patch may copy and test whole objects, and an apply computes the managed
// fields in another way.
func (*copiedBody) isOf(contentType string) bool {
	contentType, _, _ = strings.Cut(contentType, ";")
	return contentType == string(types.MergePatchType) || contentType == string(types.StrategicMergePatchType)
}

// mayNameManagedFields reports whether the patch may mention managed fields. A name
// that is written with escapes counts as such.
func (b *copiedBody) mayNameManagedFields() bool {
	return bytes.Contains(b.read, []byte("managedFields")) || bytes.Contains(b.read, []byte(`\u`))
}

// fieldRemovingSerializer removes the managed fields from the decoded body and keeps them
// in updatedFields.
type fieldRemovingSerializer struct {
	runtime.NegotiatedSerializer
	f *updatedFields
}

func (s fieldRemovingSerializer) DecoderToVersion(decoder runtime.Decoder, version runtime.GroupVersioner) runtime.Decoder {
	return fieldRemovingDecoder{s.NegotiatedSerializer.DecoderToVersion(decoder, version), s.f}
}

type fieldRemovingDecoder struct {
	runtime.Decoder
	f *updatedFields
}

func (d fieldRemovingDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	object, kind, err := d.Decoder.Decode(data, defaults, into)
	if object == nil {
		return object, kind, err
	}
	if accessor, notMeta := meta.Accessor(object); notMeta == nil {
		d.f.decoded, d.f.bodyEntries = accessor, accessor.GetManagedFields()
		accessor.SetManagedFields(nil)
	}
	return object, kind, err
}

// fieldsUpdater passes the storage an update that updatedFields controls.
type fieldsUpdater struct {
	rest.Updater
	f *updatedFields
}

func (u fieldsUpdater) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, createValidation rest.ValidateObjectFunc, updateValidation rest.ValidateObjectUpdateFunc, forceAllowCreate bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	if !u.f.isRepeated {
		u.f.isRepeated = true
		info = &fieldsInfo{info, u.f}
	} else {
		u.f.entries = nil
	}
	return u.Updater.Update(ctx, name, info, createValidation, updateValidation, forceAllowCreate, options)
}

type fieldsPatcher struct {
	rest.Getter
	fieldsUpdater
}

// fieldsInfo is an update whose managed fields updatedFields sets.
type fieldsInfo struct {
	rest.UpdatedObjectInfo
	f *updatedFields
}

func (i *fieldsInfo) UpdatedObject(ctx context.Context, live runtime.Object) (runtime.Object, error) {
	f := i.f
	f.entries, f.removed, f.isAdmitted = nil, nil, false
	before, err := meta.Accessor(live)
	if err != nil || !f.canUpdate(before) {
		return f.leaveToUpstream(ctx, i.UpdatedObjectInfo, live)
	}
	f.entries = before.GetManagedFields()
	before.SetManagedFields(nil)
	object, err := i.UpdatedObjectInfo.UpdatedObject(ctx, live)
	before.SetManagedFields(f.entries)
	if !f.isAdmitted {
		return f.leaveToUpstream(ctx, i.UpdatedObjectInfo, live)
	}
	if err != nil || f.removed == nil {
		return object, err
	}
	after, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	after.SetManagedFields(f.removed)
	return object, nil
}

func (f *updatedFields) leaveToUpstream(ctx context.Context, info rest.UpdatedObjectInfo, live runtime.Object) (runtime.Object, error) {
	f.entries = nil
	if f.decoded != nil {
		f.decoded.SetManagedFields(f.bodyEntries)
		defer f.decoded.SetManagedFields(nil)
	}
	return info.UpdatedObject(ctx, live)
}

// canUpdate reports whether updatedFields can set the managed fields: they exist, and
// the request does not change them. A client that sends back what it has read changes
// nothing. A subresource ignores the managed fields of the body.
func (f *updatedFields) canUpdate(live metav1.Object) bool {
	if live.GetUID() == "" || len(live.GetManagedFields()) == 0 {
		return false
	}
	if f.patch != nil {
		return !f.patch.mayNameManagedFields()
	}
	return f.bodyEntries == nil || f.updater.Subresource != "" || slices.EqualFunc(f.bodyEntries, live.GetManagedFields(), sameEntry)
}

func sameEntry(a, b metav1.ManagedFieldsEntry) bool {
	return a.Manager == b.Manager && a.Operation == b.Operation && a.APIVersion == b.APIVersion && a.Subresource == b.Subresource &&
		a.Time.Equal(b.Time) && a.FieldsType == b.FieldsType && a.FieldsV1 != nil && b.FieldsV1 != nil && a.FieldsV1.Equal(*b.FieldsV1)
}

// updatedFieldsAdmission is admission before which the managed fields of both objects
// are set. If admission leaves those of the new object unchanged, they are removed
// afterwards.
type updatedFieldsAdmission struct {
	plugins
	f *updatedFields
}

func (a updatedFieldsAdmission) Admit(ctx context.Context, attributes admission.Attributes, o admission.ObjectInterfaces) error {
	f := a.f
	object, err := meta.Accessor(attributes.GetObject())
	if err != nil || f.entries == nil {
		return a.plugins.Admit(ctx, attributes, o)
	}
	f.isAdmitted = true
	manager := f.manager
	if options, ok := attributes.GetOperationOptions().(*metav1.UpdateOptions); ok && options.FieldManager != "" {
		manager = options.FieldManager
	}
	if err := f.updater.Update(attributes.GetOldObject(), attributes.GetObject(), f.entries, manager); err != nil {
		return err
	}
	unchanged, err := admitWithFields(ctx, a.plugins, attributes, o, object)
	if err == nil && unchanged != nil {
		f.removed = unchanged
		object.SetManagedFields(nil)
	}
	return err
}
