"""Operations as values: the settings of every command, their roles, and their JSON form."""
