"""A reader of INI files: the title is the first section, the text are the settings."""

from configparser import ConfigParser
from configparser import Error as ConfigError

from lmkcli.data.filetext import FileText, decode_text
from lmkcli.errors import DataError


def read_ini(data: bytes, encoding: str) -> FileText:
    """Return the title and the text of an INI file. Raises DataError, with only the reason."""
    parser = ConfigParser(interpolation=None)
    try:
        parser.read_string(decode_text(data, encoding))
    except ConfigError as error:
        raise DataError(f"is no INI file ({error.message})") from None
    sections = parser.sections()
    lines = [f"{key} is {value}" for name in sections for key, value in parser[name].items()]
    return FileText(sections[0] if sections else "", "\n".join(lines))
