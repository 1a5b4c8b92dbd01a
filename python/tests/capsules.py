"""DLPack objects made by hand: everything they say can be something that no library would say."""

import ctypes

NAMES = {True: b"dltensor_versioned", False: b"dltensor"}
READ_ONLY, COPIED = 1, 2


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class Managed(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Tensor),
    ]  # fmt: skip


class Legacy(ctypes.Structure):
    _fields_ = [
        ("tensor", Tensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    ]  # fmt: skip


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = (
    ctypes.py_object,
    [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
)


class Handmade:
    """A float32 array at `address`; any field of its description can be given."""

    def __init__(
        self, address, shape, strides=None, *, versioned=True, name=None, announced=None, **fields
    ):
        self.exported = 0
        self.shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        self.strides = (
            None if strides is None else (ctypes.c_int64 * max(len(strides), 1))(*strides)
        )
        described = {
            "data": address, "device_type": 1, "device_id": 0, "ndim": len(shape), "code": 2,
            "bits": 32, "lanes": 1, "shape": ctypes.addressof(self.shape),
            "strides": None if strides is None else ctypes.addressof(self.strides),
            "byte_offset": 0,
        }  # fmt: skip
        outer = {n: fields.pop(n) for n in ("major", "minor", "flags") if n in fields}
        self.tensor = Tensor(**{**described, **fields})
        if versioned:
            self.managed = Managed(
                **{"major": 1, "minor": 0, "flags": 0, **outer}, tensor=self.tensor
            )
        else:
            self.managed = Legacy(tensor=self.tensor)
        self.name = NAMES[versioned] if name is None else name
        self.device = announced or (self.tensor.device_type, self.tensor.device_id)

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **keywords):
        self.exported += 1
        return new_capsule(ctypes.addressof(self.managed), self.name, None)
