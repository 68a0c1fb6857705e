"""What this machine can do: rates measured, packages tried, and what each lab therefore shows on it."""

from labs_utils.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "labs_utils.doctor.examine": ("doctor",),
        "labs_utils.doctor.report": ("Report", "data_sheet_report"),
        "labs_utils.doctor.findings": ("tables",),
        "labs_utils.doctor.machine_rates": ("product",),
    },
)
